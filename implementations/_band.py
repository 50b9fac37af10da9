"""Softmax attention under a band, in PyTorch operators on tiles: time O(n·W·d), memory O(n·d + W).

In: q, k, v. Out: out, lse, and gradients. A tile is a block of queries and the keys that they see, a view of k
and v without a copy (neighbouring tiles overlap). Keys that no query sees are never read. Scores are float32
(float64 for float64 inputs) in one buffer that stays in cache; the backward pass makes them again, so that
nothing but the inputs is kept for it.
"""

from typing import Any

import torch
from torch import Tensor

from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.problem import Problem

from ._band_tiles import Band, Operation, Tiles, band_of, operations
from ._batch_runs import BatchRun, batch_runs
from ._scratch import Scratch


def _flat(x: Tensor, run: BatchRun, dtype: torch.dtype) -> Tensor:
    """``[B, H, S, D]`` → ``[b·H, S, D]`` of these batch rows, contiguous, in the dtype that sums are made in."""
    return x[run.rows].to(dtype).contiguous().flatten(0, 1)


def _blocks(x: Tensor, heads: int | slice, first: int, size: int, step: int, count: int) -> Tensor:
    """View ``[tiles, size, D]`` of x ``[N, S, D]``; of a single head, tile t begins at ``first + t·step``."""
    if isinstance(heads, slice):
        return x[heads, first : first + size]
    return x[heads, first : first + (count - 1) * step + size].unfold(0, size, step).mT


def _rows(x: Tensor, operation: Operation) -> Tensor:
    t = operation.tiles
    return _blocks(x, operation.heads, t.row, t.rows, t.rows, t.count)


def _keys(x: Tensor, operation: Operation) -> Tensor:
    t = operation.tiles
    return _blocks(x, operation.kv_heads, t.key, t.keys, t.rows, t.count)


def hidden_columns(tiles: Tiles, band: Band) -> tuple[int, int]:
    """Return how many of a tile's first and of its last columns some row of it does not see."""
    left, right = tiles.row + band.lo - tiles.key, tiles.row + band.hi - tiles.key
    at_start = min(tiles.keys, max(0, tiles.rows - 1 + left))
    return at_start, tiles.keys - min(tiles.keys, max(0, right + 1))


def _hide(scores: Tensor, t: Tiles, band: Band) -> None:
    """Set what lies outside the band to -inf: a triangle in the first columns of a tile, one in the last.

    Row r sees the columns from ``r + t.row + lo - t.key`` to ``r + t.row + hi - t.key``.
    """
    at_start, at_end = hidden_columns(t, band)
    if at_start:
        hidden = torch.ones(t.rows, at_start, dtype=torch.bool, device=scores.device)
        hidden.tril_(t.row + band.lo - t.key - 1)
        scores[..., :at_start].masked_fill_(hidden, -torch.inf)
        del hidden
    if at_end:
        hidden = torch.ones(t.rows, at_end, dtype=torch.bool, device=scores.device)
        hidden.triu_(t.row + band.hi + 1 - (t.key + t.keys - at_end))
        scores[..., -at_end:].masked_fill_(hidden, -torch.inf)


def _scores(q: Tensor, k: Tensor, scale: float, t: Tiles, band: Band, scratch: Scratch) -> Tensor:
    """``q kᵀ · scale`` ``[tiles, rows, keys]``, -inf where hidden."""
    scores = scratch("scores", q.shape[0], t.rows, t.keys)
    torch.baddbmm(scores, q, k.mT, beta=0, alpha=scale, out=scores)
    _hide(scores, t, band)
    return scores


def _store(target: Tensor, a: Tensor, b: Tensor, scratch: Scratch) -> None:
    """``target = a b``; straight into it if its dtype allows and its tiles lie one after another, as bmm likes."""
    if target.is_contiguous() and target.dtype == a.dtype:
        torch.bmm(a, b, out=target)
    else:
        target.copy_(torch.bmm(a, b, out=scratch("rows", *target.shape)))


def _forward(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Attend without a graph; ``lse`` if the problem asks for it."""
    p, wide = problem, torch.promote_types(q.dtype, torch.float32)
    out = torch.empty(p.batch, p.num_heads, p.seqlen_q, p.head_dim_v, dtype=q.dtype, device=q.device)
    wanted = p.option("return_lse", False)
    lse = out.new_full(out.shape[:3], -torch.inf, dtype=wide) if wanted else None
    scratch = Scratch(out, wide)
    for run in batch_runs(p):
        band = band_of(p, run)
        flat_q, flat_k, flat_v = (_flat(x, run, wide) for x in (q, k, v))
        flat_out = out[run.rows].flatten(0, 1)
        first, last = band.seeing
        flat_out[:, :first].zero_()
        flat_out[:, last:].zero_()
        for operation in operations(p, run):
            q_blocks, k_blocks = _rows(flat_q, operation), _keys(flat_k, operation)
            scores = _scores(q_blocks, k_blocks, p.softmax_scale, operation.tiles, band, scratch)
            largest = None if lse is None else scores.amax(-1, keepdim=True)
            weights = torch.softmax(scores, -1, out=scores)
            if lse is not None and largest is not None:
                # The largest weight is 1 / Σ exp(score - largest): no second pass of exponentials.
                log_sum = largest.sub_(weights.amax(-1, keepdim=True).log_())
                _rows(lse[run.rows].flatten(0, 1).unsqueeze(-1), operation).copy_(log_sum)
            _store(_rows(flat_out, operation), weights, _keys(flat_v, operation), scratch)
            del scores, weights  # a buffer that grows must not be held
    return out, lse


def _add_keys(total: Tensor, part: Tensor, operation: Operation) -> None:
    """Add ``part`` ``[tiles, keys, D]``, gradients of each tile's keys, to ``total`` ``[N, Sk, D]``.

    Tiles of one head overlap: they are added in slices one step wide, which do not.
    """
    t = operation.tiles
    width = t.keys if isinstance(operation.kv_heads, slice) else t.rows
    for first in range(0, t.keys, width):
        size = min(width, t.keys - first)
        target = _blocks(total, operation.kv_heads, t.key + first, size, t.rows, t.count)
        target.add_(part[:, first : first + size])


def _backward(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, problem: Problem
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk, dv: per tile p again, ``dp = do vᵀ · scale``, ``ds = p (dp - Σ p dp)``, and the products."""
    p, wide = problem, torch.promote_types(q.dtype, torch.float32)
    dq = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    dk, dv = (torch.zeros(x.shape, dtype=wide, device=x.device) for x in (k, v))
    scratch = Scratch(q, wide)
    for run in batch_runs(p):
        band = band_of(p, run)
        flat_q, flat_k, flat_v, flat_do = (_flat(x, run, wide) for x in (q, k, v, grad_out))
        flat_dq, flat_dk, flat_dv = (x[run.rows].flatten(0, 1) for x in (dq, dk, dv))
        for operation in operations(p, run):
            t = operation.tiles
            q_blocks, k_blocks = _rows(flat_q, operation), _keys(flat_k, operation)
            do_blocks, v_blocks = _rows(flat_do, operation), _keys(flat_v, operation)
            scores = _scores(q_blocks, k_blocks, p.softmax_scale, t, band, scratch)
            weights = torch.softmax(scores, -1, out=scores)
            ds = scratch("ds", *scores.shape)
            torch.baddbmm(ds, do_blocks, v_blocks.mT, beta=0, alpha=p.softmax_scale, out=ds)
            # Fused, and exact where a row sees one key: both terms of the difference are then the same number.
            torch._softmax_backward_data(ds, weights, -1, wide, grad_input=ds)
            for total, a, b in ((flat_dv, weights, do_blocks), (flat_dk, ds, q_blocks)):
                part = scratch("keys", a.shape[0], t.keys, b.shape[2])
                _add_keys(total, torch.bmm(a.mT, b, out=part), operation)
            _store(_rows(flat_dq, operation), ds, k_blocks, scratch)
            del scores, weights, ds, part, a, b
    return dq, dk.to(k.dtype), dv.to(v.dtype)


class _BandAttention(torch.autograd.Function):
    """The two passes above as one differentiable operator; ``lse`` carries no gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor | None]:
        out, lse = _forward(q, k, v, problem)
        ctx.save_for_backward(q, k, v)
        ctx.problem = problem
        if lse is not None:
            ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors
        return *_backward(q, k, v, grad_out, ctx.problem), None


def band_attention(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> AttentionOutput:
    """``softmax(q kᵀ · scale) v`` under a mask that is a band bounded on both sides; rows that see nothing give 0.

    Args:
        q: queries ``[B, H, Sq, D]``.
        k: keys ``[B, G, Sk, D]``.
        v: values ``[B, G, Sk, Dv]``.
        problem: geometry, scale, and whether ``lse`` ``[B, H, Sq]`` is wanted (``return_lse``).
    """
    return AttentionOutput(*_BandAttention.apply(q, k, v, problem))  # type: ignore[no-untyped-call]
