"""Softmax attention under a band, in PyTorch operators on tiles: time O(n·W·d), memory O(n·d + W).

In: q, k, v. Out: out, lse, and gradients. A tile is a block of queries and the keys that they see, a view
of k and v without a copy (neighbouring tiles overlap). Keys that no query sees are never read. Scores are
float32 (float64 for float64 inputs) in one buffer that stays in cache; the backward pass makes them again,
so that nothing but the inputs is kept for it.
"""

from typing import Any

import torch
from torch import Tensor

from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.problem import Problem
from attnbench.implementations._shared.batch_runs import BatchRun, batch_runs
from attnbench.implementations._shared.once import once
from attnbench.implementations._shared.scratch import Scratch

from .tiles import Band, Operation, Triangle, band_of, hidden_corners, operations


def _flat(x: Tensor, run: BatchRun, dtype: torch.dtype, keys: Band | None = None) -> Tensor:
    """``[B, H, S, D]`` → ``[b·H, S, D]`` of these batch rows, and of the band's keys alone.

    A view if dtype and strides allow: the tokens of a head must lie one after another.
    """
    x = x[run.rows]
    if keys is not None:
        x = x[:, :, keys.first_key : keys.first_key + keys.num_keys]
    flat = x.to(dtype).flatten(0, 1)
    return flat if flat.stride()[1:] == (flat.shape[2], 1) else flat.contiguous()


def _blocks(
    x: Tensor, count: int, first: int, size: int, token_step: int, head: int, head_step: int
) -> Tensor:
    """View ``[count, size, D]`` of x ``[N, S, D]``: ``size`` tokens of each tile.

    One view, of x itself: what ``torch.compile`` lets be written to if x is no view either.
    """
    apart, width = x.stride(0), x.shape[2]
    strides = (head_step * apart + token_step * width, width, 1)
    return x.as_strided((count, size, width), strides, x.storage_offset() + head * apart + first * width)


def _rows(x: Tensor, o: Operation, heads_before: int = 0) -> Tensor:
    return _blocks(x, o.num_tiles, o.row, o.rows, o.step, heads_before + o.head, o.head_step)


def _keys(x: Tensor, o: Operation) -> Tensor:
    return _blocks(x, o.num_tiles, o.key, o.keys, o.step, o.kv_head, o.kv_step)


class _Scores:
    """Makes the scores of one operation after the other, in one buffer."""

    def __init__(self, scale: float, scratch: Scratch) -> None:
        self._scale, self._scratch = scale, scratch
        self._triangles: dict[Triangle, Tensor] = {}

    def __call__(self, q: Tensor, k: Tensor, o: Operation, band: Band) -> Tensor:
        """``q kᵀ · scale`` ``[count, rows, keys]``, -inf outside the band."""
        scores = self._scratch("scores", o.num_tiles, o.rows, o.keys)
        torch.baddbmm(scores, q, k.mT, beta=0, alpha=self._scale, out=scores)
        for corner in hidden_corners(o, band):
            hidden = self._hidden(corner._replace(first=0), scores.device)
            scores[..., corner.first : corner.first + corner.columns].masked_fill_(hidden, -torch.inf)
        return scores

    def _hidden(self, corner: Triangle, device: torch.device) -> Tensor:
        if corner not in self._triangles:
            ones = torch.ones(corner.rows, corner.columns, dtype=torch.bool, device=device)
            self._triangles[corner] = (
                ones.tril_(corner.diagonal) if corner.below else ones.triu_(corner.diagonal)
            )
        return self._triangles[corner]


def _store(target: Tensor, a: Tensor, b: Tensor, scratch: Scratch) -> None:
    """``target = a b``; bmm writes straight into it only if its tiles lie one after another."""
    if target.is_contiguous() and target.dtype == a.dtype:
        torch.bmm(a, b, out=target)
    else:
        target.copy_(torch.bmm(a, b, out=scratch("rows", *target.shape)))


def band_forward(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Attend without a graph; ``lse`` if the problem asks for it."""
    p, wide = problem, torch.promote_types(q.dtype, torch.float32)
    heads = p.batch * p.num_heads
    out = torch.empty(heads, p.seqlen_q, p.head_dim_v, dtype=q.dtype, device=q.device)
    wanted = p.option("return_lse", False)
    lse = out.new_full((heads, p.seqlen_q, 1), -torch.inf, dtype=wide) if wanted else None
    scratch = Scratch(out, wide)
    make_scores = _Scores(p.softmax_scale, scratch)
    for run in batch_runs(p):
        band = band_of(p, run)
        flat_q = _flat(q, run, wide)
        flat_k, flat_v = (_flat(x, run, wide, band) for x in (k, v))
        before = run.rows.start * p.num_heads
        first, last = band.seeing
        for blind in (slice(0, first), slice(last, None)):
            out[before : before + run.batch * p.num_heads, blind].zero_()
        for operation in operations(p, run):
            q_blocks, k_blocks = _rows(flat_q, operation), _keys(flat_k, operation)
            scores = make_scores(q_blocks, k_blocks, operation, band)
            largest = None if lse is None else scores.amax(-1, keepdim=True)
            weights = torch.softmax(scores, -1, out=scores)
            if lse is not None and largest is not None:
                # The largest weight is 1 / Σ exp(score - largest): no second pass of exponentials.
                log_sum = largest.sub_(weights.amax(-1, keepdim=True).log_())
                _rows(lse, operation, before).copy_(log_sum)
            _store(_rows(out, operation, before), weights, _keys(flat_v, operation), scratch)
            del scores, weights  # a buffer that grows must not be held
    rows = (p.batch, p.num_heads, p.seqlen_q)
    return out.view(*rows, p.head_dim_v), None if lse is None else lse.view(rows)


def _add_keys(total: Tensor, part: Tensor, o: Operation, keys_before: int, heads_before: int) -> None:
    """Add ``part`` ``[count, keys, D]``, gradients of each tile's keys, to ``total`` ``[N, Sk, D]``.

    Tiles of one head overlap: they are added in slices one step wide, which do not.
    """
    key, head = keys_before + o.key, heads_before + o.kv_head
    width = o.step or o.keys
    for first in range(0, o.keys, width):
        size = min(width, o.keys - first)
        target = _blocks(total, o.num_tiles, key + first, size, o.step, head, o.kv_step)
        target.add_(part[:, first : first + size])


def band_backward(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, grad_lse: Tensor | None, problem: Problem
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk, dv from p, made again, ``dp = do vᵀ`` and ``ds = p (dp - Σ p dp + dlse) · scale``."""
    p, wide = problem, torch.promote_types(q.dtype, torch.float32)
    dq = torch.zeros(p.batch * p.num_heads, *q.shape[2:], dtype=q.dtype, device=q.device)
    dk, dv = (
        torch.zeros(p.batch * p.num_kv_heads, *x.shape[2:], dtype=wide, device=x.device) for x in (k, v)
    )
    scratch = Scratch(q, wide)
    make_scores = _Scores(p.softmax_scale, scratch)
    for run in batch_runs(p):
        band = band_of(p, run)
        flat_q, flat_do = (_flat(x, run, wide) for x in (q, grad_out))
        flat_dlse = None if grad_lse is None else _flat(grad_lse.unsqueeze(-1), run, wide) * p.softmax_scale
        flat_k, flat_v = (_flat(x, run, wide, band) for x in (k, v))
        before, kv_before = (run.rows.start * heads for heads in (p.num_heads, p.num_kv_heads))
        for operation in operations(p, run):
            q_blocks, k_blocks = _rows(flat_q, operation), _keys(flat_k, operation)
            do_blocks, v_blocks = _rows(flat_do, operation), _keys(flat_v, operation)
            scores = make_scores(q_blocks, k_blocks, operation, band)
            weights = torch.softmax(scores, -1, out=scores)
            ds = scratch("ds", *scores.shape)
            torch.baddbmm(ds, do_blocks, v_blocks.mT, beta=0, alpha=p.softmax_scale, out=ds)
            # Exact where a row sees one key: both terms of the difference are then the same number.
            torch._softmax_backward_data(ds, weights, -1, wide, grad_input=ds)
            if flat_dlse is not None:
                ds.addcmul_(weights, _rows(flat_dlse, operation))
            for total, a, b in ((dv, weights, do_blocks), (dk, ds, q_blocks)):
                shape = (operation.num_tiles, operation.keys, b.shape[2])
                part = torch.bmm(a.mT, b, out=scratch("keys", *shape))
                _add_keys(total, part, operation, band.first_key, kv_before)
                del part  # dk's may be the larger one
            _store(_rows(dq, operation, before), ds, k_blocks, scratch)
            del scores, weights, ds, a, b
    return dq.view(q.shape), dk.to(k.dtype).view(k.shape), dv.to(v.dtype).view(v.shape)


class _BandAttention(torch.autograd.Function):
    """The two passes above as one operator, differentiable once in out and lse."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor | None]:
        out, lse = band_forward(q, k, v, problem)
        ctx.save_for_backward(q, k, v)
        ctx.problem = problem
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v = inputs = ctx.saved_tensors
        with torch.no_grad():
            do = q.new_zeros(*q.shape[:3], v.shape[3]) if grad_out is None else grad_out
            gradients = band_backward(q, k, v, do, grad_lse, ctx.problem)
        upstream = tuple(x for x in (grad_out, grad_lse) if x is not None)
        return *once("sliding-window", gradients, (*inputs, *upstream)), None


def band_attention(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> AttentionOutput:
    """``softmax(q kᵀ · scale) v`` under a mask that is a band bounded on both sides.

    Rows that see no key give 0 and an ``lse`` of -inf.

    Args:
        q: queries ``[B, H, Sq, D]``.
        k: keys ``[B, G, Sk, D]``.
        v: values ``[B, G, Sk, Dv]``.
        problem: geometry, scale, and whether ``lse`` ``[B, H, Sq]`` is wanted (``return_lse``).
    """
    return AttentionOutput(*_BandAttention.apply(q, k, v, problem))  # type: ignore[no-untyped-call]
