"""Which function is computed: its definition and the plain computation that sets error budgets.

In: a block of query rows, their keys and values, and what they see. Out: the block's out and lse. The dtype
of the tensors decides: float64 for the truth, the case's own for the baseline. Applied by ``evaluation.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import elu

from .bounds import linear_bounds, softmax_bounds
from .columns import ColumnFunction, softmax_columns
from .implementation import AttentionOutput
from .problem import Problem
from .rounding import stored_scores


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
    projections), so that blocks may leave the other keys out. ``bound`` caps the error budgets. ``columns``
    gives the gradients of chosen keys over all queries, from out and lse. ``by_position`` is false where the
    places of keys say only which of them are seen: a full ring buffer need not be put in order then.
    ``joins`` says that both functions return as ``lse`` the logarithm of the sum of their weights,
    differentiable, so that rows over many keys can be joined from parts (``joining.py``), whether or not
    ``lse`` is a result (``has_lse``).
    ``in_unit(unit)`` is the baseline keeping what it stores in multiples of ``unit``, which rounds it
    elsewhere; stating it also says that the elements of heads may come in any order. Without it the baseline
    is one sample of its rounding.
    """

    name: str
    reference: BlockFunction
    baseline: BlockFunction
    approximates: "Semantics | None" = None
    bound: BoundFunction | None = None
    columns: ColumnFunction | None = None
    in_unit: Callable[[float], BlockFunction] | None = None
    has_lse: bool = True
    local_keys: bool = True
    by_position: bool = True
    joins: bool = False


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
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, unit: float
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = stored_scores(q, k, scale, unit).masked_fill(~visible, -torch.inf)
        some = visible.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~some, 0)
        lse = torch.logsumexp(scores, dim=-1, keepdim=True)
        weights = scores.softmax(dim=-1).masked_fill(~some, 0)
        out = (weights.to(q.dtype).to(wide) @ v.to(wide)).to(q.dtype)
        kept = (scores - lse).exp().masked_fill(~some, 0)
        ctx.save_for_backward(q, k, v, out, kept.to(q.dtype))
        ctx.scale = scale
        lse = lse.masked_fill(~some, -torch.inf)[..., 0]
        return out, lse

    @staticmethod
    def backward(
        ctx: Any, grad_out: Tensor, grad_lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        q, k, v, out, weights = ctx.saved_tensors
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        q, k, v, out, weights, grad_out = (x.to(wide) for x in (q, k, v, out, weights, grad_out))
        dv = weights.transpose(-1, -2) @ grad_out
        dp = (grad_out @ v.transpose(-1, -2)).to(dtype).to(wide)
        drop = (grad_out * out).sum(dim=-1, keepdim=True) - grad_lse[..., None]
        ds = (weights * (dp - drop)).to(dtype).to(wide)
        dq = ds @ k * ctx.scale
        dk = ds.transpose(-1, -2) @ q * ctx.scale
        return dq.to(dtype), dk.to(dtype), dv.to(dtype), None, None, None


def _softmax_baseline(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    visible: Tensor,
    params: Mapping[str, Tensor] | None = None,
    unit: float = 1.0,
) -> AttentionOutput:
    """The same in the inputs' dtype, as anybody would write it down; scores in multiples of ``unit``."""
    apply: Callable[..., tuple[Tensor, Tensor]] = _PlainSoftmax.apply
    out, lse = apply(q, k, v, visible, problem.softmax_scale, unit)
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
    out = (weights @ v) / torch.where(total == 0, 1, total)
    return AttentionOutput(out, _log_of(total))


def _linear_baseline(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    visible: Tensor,
    params: Mapping[str, Tensor] | None = None,
    unit: float = 1.0,
) -> AttentionOutput:
    """The same with features and weights stored in the inputs' dtype and every sum in float32 (or better).

    Features are kept in multiples of ``unit``, of which the quotient knows nothing.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    features_q, features_k = ((_feature(x.to(wide)) * unit).to(x.dtype).to(wide) for x in (q, k))
    weights = (features_q @ features_k.transpose(-1, -2)).masked_fill(~visible, 0)
    total = weights.sum(dim=-1, keepdim=True)
    out = (weights.to(q.dtype).to(wide) @ v.to(wide)) / torch.where(total == 0, 1, total)
    return AttentionOutput(out.to(q.dtype), _log_of(total))


def _log_of(total: Tensor) -> Tensor:
    """Return the logarithms ``[B, H, R]``, -inf (with no gradient) where a row sees no key.

    In float64: rounded to float32, they would add to the baseline an error that no division has.
    """
    nothing = total == 0
    return torch.where(nothing, 1, total).double().log().masked_fill(nothing, -torch.inf)[..., 0]


def _softmax_in_unit(unit: float) -> BlockFunction:
    return partial(_softmax_baseline, unit=unit)


def _linear_in_unit(unit: float) -> BlockFunction:
    return partial(_linear_baseline, unit=unit)


SOFTMAX = Semantics(
    "softmax",
    _softmax_reference,
    _softmax_baseline,
    bound=softmax_bounds,
    columns=softmax_columns,
    in_unit=_softmax_in_unit,
    by_position=False,
    joins=True,
)
LINEAR_ELU = Semantics(
    "linear-elu",
    _linear_reference,
    _linear_baseline,
    approximates=SOFTMAX,
    bound=linear_bounds,
    in_unit=_linear_in_unit,
    has_lse=False,
    by_position=False,
    joins=True,
)
"""Katharopoulos et al., arXiv 2006.16236."""
