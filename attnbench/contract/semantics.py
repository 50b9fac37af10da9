"""Which function is computed: its definition in float64 and the plain computation that sets error budgets.
Row block by row block.

In: q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` in any dtype. Out: float64 truth, or a
baseline in the inputs' own dtype.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import elu

from .bounds import linear_bounds, softmax_bounds
from .hidden import visible_matrix, zero_hidden
from .implementation import AttentionOutput
from .problem import Problem

BLOCK_BYTES = 1 << 26
"""Size of one block of float64 scores."""


class BoundFunction(Protocol):
    """An a-priori bound on the error of a sound computation (``bounds.py``)."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor | None, problem: Problem
    ) -> dict[str, float]:
        """Return bounds on |error| by tensor name (out, lse, dq, dk, dv).

        A tensor without one is left out.
        """


class BlockFunction(Protocol):
    """A definition of attention on a block of query rows."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        problem: Problem,
        visible: Tensor,
        params: Mapping[str, Tensor] | None = None,
    ) -> AttentionOutput:
        """q ``[B, H, R, D]``; k, v ``[B, H, K, D]`` already repeated to H heads.

        ``visible`` broadcasts to ``[B, H, R, K]``.
        """


@dataclass(frozen=True)
class Semantics:
    """Which function an implementation computes.

    ``reference`` is the definition, run in float64. ``baseline`` is the plain computation in the case's own
    dtype with float32 accumulation, against which error budgets are set. ``approximates`` names the semantics
    it stands in for: the distance to those is reported as approximation, never as error. ``local_keys`` says
    that a row depends only on the keys it sees (false for what mixes all keys first, such as low-rank
    projections), so that blocks may leave the other keys out. ``bound`` caps the error budgets.
    """

    name: str
    reference: BlockFunction
    baseline: BlockFunction
    approximates: "Semantics | None" = None
    bound: BoundFunction | None = None
    has_lse: bool = True
    local_keys: bool = True


class Truth(NamedTuple):
    """Results of one evaluation.

    ``out``, ``lse`` on the rows asked for, and gradients if an upstream gradient was given.
    """

    out: Tensor
    lse: Tensor | None
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None


def _softmax_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    visible: Tensor,
    params: Mapping[str, Tensor] | None = None,
) -> AttentionOutput:
    """``softmax(q kᵀ · scale) v`` over visible keys; rows without any give 0 and lse -inf."""
    logits = (q @ k.transpose(-1, -2) * problem.softmax_scale).masked_fill(~visible, -torch.inf)
    some = visible.any(dim=-1)
    lse = torch.logsumexp(logits.masked_fill(~some[..., None], 0), dim=-1).masked_fill(~some, -torch.inf)
    weights = (logits - lse.masked_fill(~some, 0)[..., None]).exp()
    return AttentionOutput(weights @ v, lse)


class _PlainSoftmax(torch.autograd.Function):
    """Scores and weights stored in the inputs' dtype, every sum in float32 (or better), and the textbook
    backward pass.

    Backward (FlashAttention-2, arXiv 2307.08691, algorithm 2, without the tiles): P = exp(S - lse), dV = Pᵀ
    dO, dP = dO Vᵀ, dS = P ∘ (dP - rowsum(dO ∘ O)), dQ = dS K, dK = dSᵀ Q. Autograd's own softmax backward
    cancels exactly in rows that see one key, a luck that no fused kernel shares and that would make the
    budget of such gradients nothing.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = (q.to(wide) @ k.to(wide).transpose(-1, -2) * scale).to(q.dtype).to(wide)
        scores = scores.masked_fill(~visible, -torch.inf)
        some = visible.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~some, 0)
        lse = torch.logsumexp(scores, dim=-1, keepdim=True)
        weights = scores.softmax(dim=-1).masked_fill(~some, 0)
        out = (weights.to(q.dtype).to(wide) @ v.to(wide)).to(q.dtype)
        kept = (scores - lse).exp().masked_fill(~some, 0)
        ctx.save_for_backward(q, k, v, out, kept.to(q.dtype))
        ctx.scale = scale
        lse = lse.masked_fill(~some, -torch.inf)[..., 0]
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, weights = ctx.saved_tensors
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        q, k, v, out, weights, grad_out = (x.to(wide) for x in (q, k, v, out, weights, grad_out))
        dv = weights.transpose(-1, -2) @ grad_out
        dp = (grad_out @ v.transpose(-1, -2)).to(dtype).to(wide)
        ds = (weights * (dp - (grad_out * out).sum(dim=-1, keepdim=True))).to(dtype).to(wide)
        dq = ds @ k * ctx.scale
        dk = ds.transpose(-1, -2) @ q * ctx.scale
        return dq.to(dtype), dk.to(dtype), dv.to(dtype), None, None


def _softmax_baseline(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    visible: Tensor,
    params: Mapping[str, Tensor] | None = None,
) -> AttentionOutput:
    """The same in the inputs' dtype, as anybody would write it down."""
    apply: Callable[..., tuple[Tensor, Tensor]] = _PlainSoftmax.apply
    out, lse = apply(q, k, v, visible, problem.softmax_scale)
    return AttentionOutput(out, lse)


def _feature(x: Tensor) -> Tensor:
    return elu(x) + 1


def _linear_weights(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    return (_feature(q) @ _feature(k).transpose(-1, -2)).masked_fill(~visible, 0)


def _linear_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    visible: Tensor,
    params: Mapping[str, Tensor] | None = None,
) -> AttentionOutput:
    """``Σ φ(q)·φ(k) v / Σ φ(q)·φ(k)`` over visible keys with φ = elu + 1; rows without any give 0."""
    weights = _linear_weights(q, k, visible)
    total = weights.sum(dim=-1, keepdim=True)
    return AttentionOutput((weights @ v) / torch.where(total == 0, 1, total))


def _linear_baseline(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    visible: Tensor,
    params: Mapping[str, Tensor] | None = None,
) -> AttentionOutput:
    """The same with features and weights stored in the inputs' dtype and every sum in float32 (or better)."""
    wide = torch.promote_types(q.dtype, torch.float32)
    features_q, features_k = (_feature(x.to(wide)).to(x.dtype).to(wide) for x in (q, k))
    weights = (features_q @ features_k.transpose(-1, -2)).masked_fill(~visible, 0)
    total = weights.sum(dim=-1, keepdim=True)
    out = (weights.to(q.dtype).to(wide) @ v.to(wide)) / torch.where(total == 0, 1, total)
    return AttentionOutput(out.to(q.dtype))


SOFTMAX = Semantics("softmax", _softmax_reference, _softmax_baseline, bound=softmax_bounds)
LINEAR_ELU = Semantics(
    "linear-elu",
    _linear_reference,
    _linear_baseline,
    approximates=SOFTMAX,
    bound=linear_bounds,
    has_lse=False,
)
"""Katharopoulos et al., arXiv 2006.16236."""


def _key_range(problem: Problem, semantics: Semantics, first: int, last: int) -> slice:
    """Keys that rows ``first … last`` may see, from the band if there is one."""
    band = problem.mask.band()
    if band is None or not semantics.local_keys:
        return slice(0, problem.seqlen_k)
    starts = problem.query_starts or (0,)
    lo = 0 if band.left is None else max(0, min(starts) + first - band.left)
    hi = (
        problem.seqlen_k if band.right is None else min(problem.seqlen_k, max(starts) + last + band.right + 1)
    )
    return slice(min(lo, problem.seqlen_k), max(lo, hi))


def _evaluate(
    function: BlockFunction,
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    grad_out: Tensor | None,
    rows: Tensor | None,
    params: Mapping[str, Tensor] | None,
) -> Truth:
    p = problem
    index = torch.arange(p.seqlen_q) if rows is None else rows.cpu()
    with torch.no_grad():
        k, v = zero_hidden(k, v, p)
    k, v = k.detach(), v.detach()
    gradients = grad_out is not None
    dq = torch.zeros_like(q) if gradients else None
    dk, dv = (torch.zeros_like(x) if gradients else None for x in (k, v))
    outs, lses = [], []
    step = max(1, BLOCK_BYTES // (8 * max(1, p.batch * p.num_heads * p.seqlen_k)))
    for first in range(0, index.numel(), step):
        block = index[first : first + step]
        keys = _key_range(p, semantics, int(block.min()), int(block.max()))
        here = block.to(q.device)
        q_block = q.detach()[:, :, here].requires_grad_(gradients)
        k_block = k[:, :, keys].requires_grad_(gradients)
        v_block = v[:, :, keys].requires_grad_(gradients)
        visible = visible_matrix(p, q.device, block, keys)
        with torch.set_grad_enabled(gradients):
            wide_k, wide_v = (x.repeat_interleave(p.group_size, dim=1) for x in (k_block, v_block))
            out, lse = function(q_block, wide_k, wide_v, problem=p, visible=visible, params=params)
        if grad_out is not None and dq is not None and dk is not None and dv is not None and out.numel():
            given = grad_out[:, :, here].to(out.dtype)
            grads = torch.autograd.grad(out, (q_block, k_block, v_block), given, allow_unused=True)
            for total, place, part in ((dq, here, grads[0]), (dk, keys, grads[1]), (dv, keys, grads[2])):
                if part is not None:
                    total[:, :, place] += part
        outs.append(out.detach())
        lses.append(None if lse is None else lse.detach().expand(p.batch, p.num_heads, block.numel()))
    shape = (p.batch, p.num_heads, 0)
    out = torch.cat(outs, dim=2) if outs else q.new_zeros(*shape, p.head_dim_v)
    lse = torch.cat([x for x in lses if x is not None], dim=2) if semantics.has_lse and lses else None
    if lse is None and semantics.has_lse:
        lse = q.new_zeros(shape)
    return Truth(out, lse, dq, dk, dv)


def truth(
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    grad_out: Tensor | None = None,
    rows: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
) -> Truth:
    """Evaluate the definition in float64 on all query rows, or on the given ones (``rows``, 1-d, shared by
    all heads).

    Gradients are those of ``sum(out · grad_out)`` over the evaluated rows alone: give an upstream gradient
    that is zero elsewhere and they are the gradients of the whole. dq, dk, dv come whole, ``[B, H, Sq, D]``
    and ``[B, G, Sk, …]``.
    """
    wide_params = None if params is None else {name: value.double() for name, value in params.items()}
    wide_grad = None if grad_out is None else grad_out.double()
    return _evaluate(
        semantics.reference,
        semantics,
        q.double(),
        k.double(),
        v.double(),
        problem,
        wide_grad,
        rows,
        wide_params,
    )


def baseline(
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    grad_out: Tensor | None = None,
    rows: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
) -> Truth:
    """Evaluate the plain computation in the inputs' own dtype: what an error budget is measured by.

    Same arguments as ``truth``.
    """
    return _evaluate(semantics.baseline, semantics, q, k, v, problem, grad_out, rows, params)


def definition(
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    params: Mapping[str, Tensor] | None = None,
    plain: bool = False,
) -> AttentionOutput:
    """Evaluate the reference (or, if ``plain``, the baseline) on all rows at once in the inputs' dtype,
    under autograd: n² memory.
    """
    k, v = zero_hidden(k, v, problem)
    wide_k, wide_v = (x.repeat_interleave(problem.group_size, dim=1) for x in (k, v))
    function = semantics.baseline if plain else semantics.reference
    return function(
        q, wide_k, wide_v, problem=problem, visible=visible_matrix(problem, q.device), params=params
    )
