"""Gradients of chosen keys and values from what all rows are known by: their out and lse. In: q, k, v, out,
lse, the upstream gradient, keys. Out: dk and dv of those keys.

Column j of the scores needs of row i nothing but q_i, do_i, lse_i and out_i: a million rows and some hundred
keys cost what some hundred rows do. Whether the statistics are right is for others to say.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .hidden import hidden_keys, keys_near, queries_near, visible_matrix
from .problem import Problem
from .rounding import Rounding, stored_scores

BLOCK_BYTES = 1 << 26
"""Size of one block of float64 scores."""


class Columns(NamedTuple):
    """Gradients of C keys ``[B, G, C, D]`` and values ``[B, G, C, Dv]``."""

    dk: Tensor
    dv: Tensor


class ColumnFunction(Protocol):
    """What a block of rows adds to the gradients of keys."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        *,
        problem: Problem,
        visible: Tensor,
        unit: float = 1.0,
    ) -> Columns:
        """q ``[B, H, R, D]``, out and grad_out ``[B, H, R, Dv]``, lse ``[B, H, R]``; k, v ``[B, H, C, …]``
        already repeated to H heads. ``visible`` broadcasts to ``[B, H, R, C]``. The dtype of q decides:
        float64 for the truth, the case's own for the baseline. What is stored is kept in multiples of
        ``unit``.
        """


def softmax_columns(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    *,
    problem: Problem,
    visible: Tensor,
    unit: float = 1.0,
) -> Columns:
    """P = exp(S - lse), dV = Pᵀ dO, dS = P ∘ (dO Vᵀ - rowsum(dO ∘ O)), dK = scale · dSᵀ Q.

    Scores (in multiples of ``unit``), weights and their gradients are stored in the dtype of q, every sum is
    in float32 (or better).
    Source: FlashAttention-2, arXiv 2307.08691, algorithm 2.
    """
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    scores = stored_scores(q, k, problem.softmax_scale, unit)
    q, k, v, out, lse, grad_out = (x.to(wide) for x in (q, k, v, out, lse, grad_out))
    weights = (scores - lse[..., None]).exp().masked_fill(~visible, 0).to(dtype).to(wide)
    dp = (grad_out @ v.transpose(-1, -2)).to(dtype).to(wide)
    ds = (weights * (dp - (grad_out * out).sum(dim=-1, keepdim=True))).to(dtype).to(wide)
    return Columns(ds.transpose(-1, -2) @ q * problem.softmax_scale, weights.transpose(-1, -2) @ grad_out)


def _as_given(x: Tensor) -> Tensor:
    return x


def _runs_of_rows(p: Problem, columns: Tensor, most: int) -> Iterator[tuple[int, int]]:
    """Yield ``[first, last)`` of the queries that may see one of the keys, at most so many at a time."""
    near = torch.zeros(p.seqlen_q + 2, dtype=torch.bool)
    for column in columns.tolist():
        rows = queries_near(p, column, column)
        near[1 + rows.start : 1 + rows.stop] = True
    borders = torch.nonzero(near[1:] != near[:-1])[:, 0].view(-1, 2)
    for first, last in borders.tolist():
        for row in range(first, last, most):
            yield row, min(row + most, last)


def column_gradients(
    function: ColumnFunction,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    *,
    problem: Problem,
    columns: Tensor,
    dtype: torch.dtype,
    known: Callable[[Tensor], Tensor] = _as_given,
    rounding: int = 0,
) -> Columns:
    """Evaluate dk and dv of the keys ``columns`` (1-d, sorted) over all queries, a block of rows at a time.

    Queries that see none of them are not read.

    Args:
        function: of the semantics.
        q: ``[B, H, Sq, D]``, in any dtype, as are all tensors.
        k: ``[B, G, Sk, D]``.
        v: ``[B, G, Sk, Dv]``.
        out: ``[B, H, Sq, Dv]`` of the whole.
        lse: ``[B, H, Sq]`` of the whole.
        grad_out: ``[B, H, Sq, Dv]``.
        problem: shapes and mask.
        columns: positions of keys.
        dtype: to compute in: float64 for the truth, else the baseline's, whose results come in that dtype.
        known: what of a block of out or lse is known; default as they are.
        rounding: in which order the elements of heads are summed, in which unit scores are stored.
    """
    p, place, anew = problem, q.device, Rounding(rounding)
    dims, dims_v = anew.order(p.head_dim), anew.order(p.head_dim_v)
    wide = torch.promote_types(dtype, torch.float32)
    chosen = columns.to(place)
    k, v = (anew.taken(x.detach()[:, :, chosen].to(dtype), order) for x, order in ((k, dims), (v, dims_v)))
    hidden = hidden_keys(p, place)
    if hidden is not None:
        k, v = (x.masked_fill(hidden[:, :, chosen, None], 0) for x in (k, v))
    dk, dv = (torch.zeros_like(x, dtype=wide) for x in (k, v))
    widest = max(1, columns.numel(), p.head_dim, p.head_dim_v)
    step = max(1, BLOCK_BYTES // (8 * max(1, p.batch * p.num_heads) * widest))
    for first, last in _runs_of_rows(p, columns, step):
        seen = keys_near(p, first, last - 1)
        near = torch.nonzero((columns >= seen.start) & (columns < seen.stop))[:, 0]
        rows, block, here = torch.arange(first, last), slice(first, last), near.to(place)
        part = function(
            anew.taken(q.detach()[:, :, block].to(dtype), dims),
            k[:, :, here].repeat_interleave(p.group_size, dim=1),
            v[:, :, here].repeat_interleave(p.group_size, dim=1),
            anew.taken(known(out.detach()[:, :, block]), dims_v),
            known(lse.detach()[:, :, block]),
            anew.taken(grad_out.detach()[:, :, block], dims_v),
            problem=p,
            visible=visible_matrix(p, place, rows, chosen[here]),
            unit=anew.unit,
        )
        for total, heads in ((dk, part.dk), (dv, part.dv)):
            total[:, :, here] += heads.unflatten(1, (p.num_kv_heads, p.group_size)).sum(dim=2)
    back, back_v = torch.argsort(dims), torch.argsort(dims_v)
    return Columns(anew.taken(dk, back).to(dtype), anew.taken(dv, back_v).to(dtype))
