"""Softmax attention under a band, in PyTorch operators on tiles: time and memory O(n·W). In: q, k, v. Out: out and lse, with gradients.

A tile is a block of queries and the keys that they see, a view of k and v without a copy (neighbouring tiles overlap). Keys that no
query sees are never read. Scores are kept in float32 (float64 for float64 inputs) in one scratch buffer that stays in cache; the
backward pass makes them again, so that nothing longer than n is kept for it.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.problem import Problem

from ._band_tiles import Operation, Tiles, band_tiles, operations, rows_seeing
from ._batch_runs import BatchRun, batch_runs


def limits(problem: Problem, run: BatchRun) -> tuple[int, int, int, int]:
    """Return ``(seqlen_q, num_keys, lo, hi)``: query i of these batch rows sees key j iff ``lo <= j - i <= hi`` and ``j < num_keys``."""
    band = problem.mask.band()
    assert band is not None and band.left is not None and band.right is not None
    return problem.seqlen_q, run.num_keys, run.query_start - band.left, run.query_start + band.right


def run_operations(problem: Problem, run: BatchRun) -> Iterator[Operation]:
    """Yield all operations of these batch rows."""
    for tiles in band_tiles(*limits(problem, run)):
        yield from operations(tiles, run.batch * problem.num_heads, problem.group_size)


def scratch_elements(problem: Problem, run: BatchRun, width: int = 0) -> int:
    """Return the scores of the largest operation (or, with ``width``, its gradients of keys of that width)."""
    return max((tile_count(o) * o.tiles.keys * (width or o.tiles.rows) for o in run_operations(problem, run)), default=0)


def tile_count(operation: Operation) -> int:
    """Return how many tiles one operation holds."""
    heads = operation.heads
    return operation.tiles.count if isinstance(heads, int) else len(range(heads.start, heads.stop, heads.step))


def _flat(x: Tensor, run: BatchRun, dtype: torch.dtype) -> Tensor:
    """``[B, H, S, D]`` → ``[b·H, S, D]`` of these batch rows, contiguous, in the dtype that sums are made in."""
    return x[run.rows].to(dtype).contiguous().flatten(0, 1)


def _blocks(x: Tensor, heads: int | slice, first: int, size: int, step: int, count: int) -> Tensor:
    """View ``size`` rows of x ``[N, S, D]`` a tile as ``[tiles, size, D]``; of one head, tile t begins at ``first + t * step``."""
    if isinstance(heads, slice):
        return x[heads, first : first + size]
    return x[heads, first : first + (count - 1) * step + size].unfold(0, size, step).mT


def _query_blocks(x: Tensor, operation: Operation) -> Tensor:
    t = operation.tiles
    return _blocks(x, operation.heads, t.row, t.rows, t.rows, t.count)


def _key_blocks(x: Tensor, operation: Operation) -> Tensor:
    t = operation.tiles
    return _blocks(x, operation.kv_heads, t.key, t.keys, t.rows, t.count)


def _hide(scores: Tensor, t: Tiles, lo: int, hi: int) -> None:
    """Set what lies outside the band to -inf: a triangle at the first columns of a tile, one at the last."""
    left, right = t.row + lo - t.key, t.row + hi - t.key  # row r sees columns r + left … r + right
    columns = min(t.keys, t.rows - 1 + left)
    if columns > 0:
        hidden = torch.ones(t.rows, columns, dtype=torch.bool, device=scores.device).tril_(left - 1)
        scores[..., :columns].masked_fill_(hidden, -torch.inf)
    column = max(0, right + 1)
    if column < t.keys:
        hidden = torch.ones(t.rows, t.keys - column, dtype=torch.bool, device=scores.device)
        scores[..., column:].masked_fill_(hidden.triu_(right + 1 - column), -torch.inf)


def _scores(q: Tensor, k: Tensor, scale: float, t: Tiles, lo: int, hi: int, scratch: Tensor) -> Tensor:
    """``q kᵀ · scale`` ``[tiles, rows, keys]`` in the scratch buffer, -inf where hidden."""
    scores = scratch[: q.shape[0] * t.rows * t.keys].view(q.shape[0], t.rows, t.keys)
    torch.baddbmm(scores, q, k.mT, beta=0, alpha=scale, out=scores)
    _hide(scores, t, lo, hi)
    return scores


def _store(target: Tensor, a: Tensor, b: Tensor) -> None:
    """``target = a b``, without a copy where the target allows."""
    if target.is_contiguous():
        torch.bmm(a, b, out=target)
    else:
        target.copy_(torch.bmm(a, b))


def _forward(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Attend without a graph; ``lse`` if the problem asks for it."""
    p, wide = problem, torch.promote_types(q.dtype, torch.float32)
    out = torch.empty(p.batch, p.num_heads, p.seqlen_q, p.head_dim_v, dtype=wide, device=q.device)
    lse = out.new_full(out.shape[:3], -torch.inf) if p.option("return_lse", False) else None
    for run in batch_runs(p):
        seqlen_q, num_keys, lo, hi = limits(p, run)
        flat_q, flat_k, flat_v = (_flat(x, run, wide) for x in (q, k, v))
        flat_out = out[run.rows].flatten(0, 1)
        first, last = rows_seeing(seqlen_q, num_keys, lo, hi)
        flat_out[:, :first] = 0
        flat_out[:, last:] = 0
        scratch = out.new_empty(scratch_elements(p, run))
        for operation in run_operations(p, run):
            q_blocks, k_blocks = _query_blocks(flat_q, operation), _key_blocks(flat_k, operation)
            scores = _scores(q_blocks, k_blocks, p.softmax_scale, operation.tiles, lo, hi, scratch)
            largest = None if lse is None else scores.amax(-1, keepdim=True)
            weights = torch.softmax(scores, -1, out=scores)
            if lse is not None and largest is not None:
                # The largest weight is 1 / Σ exp(score - largest): cheaper than a second pass of exponentials.
                rows = _query_blocks(lse[run.rows].flatten(0, 1).unsqueeze(-1), operation)
                rows.copy_(largest - weights.amax(-1, keepdim=True).log_())
            _store(_query_blocks(flat_out, operation), weights, _key_blocks(flat_v, operation))
    return out.to(q.dtype), lse


def _add_keys(total: Tensor, part: Tensor, operation: Operation, scale: float) -> None:
    """Add ``part`` ``[tiles, keys, D]``, gradients of the keys of each tile, to ``total`` ``[N, Sk, D]``.

    Tiles of one head overlap, so that they are added in slices of one step, which do not.
    """
    t = operation.tiles
    width = t.rows if isinstance(operation.kv_heads, int) else t.keys
    for first in range(0, t.keys, width):
        size = min(width, t.keys - first)
        target = _blocks(total, operation.kv_heads, t.key + first, size, t.rows, t.count)
        target.add_(part[:, first : first + size], alpha=scale)


def _backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad_out: Tensor, problem: Problem
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk, dv: per tile ``p`` again, ``dp = do vᵀ``, ``ds = p (dp - Σ do out)``, and their products with q, k and do."""
    p, wide = problem, torch.promote_types(q.dtype, torch.float32)
    dq, dk, dv = (torch.zeros(x.shape, dtype=wide, device=x.device) for x in (q, k, v))
    for run in batch_runs(p):
        _, _, lo, hi = limits(p, run)
        flat_q, flat_k, flat_v, flat_out, flat_do = (_flat(x, run, wide) for x in (q, k, v, out, grad_out))
        flat_dq, flat_dk, flat_dv = (x[run.rows].flatten(0, 1) for x in (dq, dk, dv))
        delta = (flat_out * flat_do).sum(-1, keepdim=True)
        scratch, scratch_ds = (dq.new_empty(scratch_elements(p, run)) for _ in range(2))
        scratch_keys = dq.new_empty(scratch_elements(p, run, max(p.head_dim, p.head_dim_v)))
        for operation in run_operations(p, run):
            t = operation.tiles
            q_blocks, k_blocks = _query_blocks(flat_q, operation), _key_blocks(flat_k, operation)
            do_blocks, v_blocks = _query_blocks(flat_do, operation), _key_blocks(flat_v, operation)
            scores = _scores(q_blocks, k_blocks, p.softmax_scale, t, lo, hi, scratch)
            weights = torch.softmax(scores, -1, out=scores)
            ds = torch.bmm(do_blocks, v_blocks.mT, out=scratch_ds[: scores.numel()].view(scores.shape))
            ds.sub_(_query_blocks(delta, operation)).mul_(weights)
            for total, a, b, scale in ((flat_dv, weights, do_blocks, 1.0), (flat_dk, ds, q_blocks, p.softmax_scale)):
                part = scratch_keys[: len(a) * t.keys * b.shape[-1]].view(len(a), t.keys, b.shape[-1])
                _add_keys(total, torch.bmm(a.mT, b, out=part), operation, scale)
            _store(_query_blocks(flat_dq, operation), ds, k_blocks)
    dq.mul_(p.softmax_scale)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class _Band(torch.autograd.Function):
    """The forward and backward pass above as one differentiable operator; ``lse`` carries no gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor | None]:
        out, lse = _forward(q, k, v, problem)
        ctx.save_for_backward(q, k, v, out)
        ctx.problem = problem
        if lse is not None:
            ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        return *_backward(*ctx.saved_tensors, grad_out, ctx.problem), None


def band_attention(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> AttentionOutput:
    """``softmax(q kᵀ · scale) v`` under a mask that is a band bounded on both sides; rows that see nothing give 0.

    Args:
        q: queries ``[B, H, Sq, D]``.
        k: keys ``[B, G, Sk, D]``.
        v: values ``[B, G, Sk, Dv]``.
        problem: geometry, scale, and whether ``lse`` ``[B, H, Sq]`` is wanted (``return_lse``).
    """
    return AttentionOutput(*_Band.apply(q, k, v, problem))
