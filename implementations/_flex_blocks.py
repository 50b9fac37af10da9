"""The block mask that FlexAttention skips hidden tiles by. In: a problem. Out: PyTorch's `BlockMask`.

A tile is ``BLOCK × BLOCK``, hidden, full (no test in it) or partial. PyTorch's own ``create_block_mask``
holds all Sq · Sk pairs at once; here the tiles of a band follow from its ends, those of other masks from one
row of tiles after the other.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from attnbench.contract.hidden import visible_matrix
from attnbench.contract.masks import Band
from attnbench.contract.problem import Problem

BLOCK = 128
"""FlexAttention's default, in queries and in keys."""


def block_mask_of(problem: Problem, device: torch.device) -> BlockMask | None:
    """Return the block mask of a problem, with the gradients' side of it where there is a backward pass.

    None where every query sees every key.
    """
    p = problem
    if p.pairs() == p.batch * p.num_heads * p.seqlen_q * p.seqlen_k:
        return None
    band = p.mask.band()
    visited, full = _tiles_of_rows(p) if band is None else _tiles_of_band(p, band)
    count, index, full_count, full_index = (
        x.to(device) for x in (*_ordered(visited & ~full), *_ordered(full))
    )
    return BlockMask.from_kv_blocks(
        count,
        index,
        full_count,
        full_index,
        BLOCK_SIZE=BLOCK,
        mask_mod=predicate(p, device),
        seq_lengths=(p.seqlen_q, p.seqlen_k),
        compute_q_blocks=p.needs_gradients,
    )


def predicate(problem: Problem, device: torch.device) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the ``mask_mod`` over indices: the mask's predicate at absolute positions, and key lengths."""
    p = problem
    mask, limited = p.mask, p.key_lengths is not None
    start: int | Tensor
    limit: int | Tensor
    start, limit = p.query_starts[0], p.key_limits[0]
    if len(p.kinds_of_rows()) > 1:
        start, limit = (torch.tensor(x, device=device) for x in (p.query_starts, p.key_limits))

    def visible(b: Tensor, h: Tensor, q_index: Tensor, k_pos: Tensor) -> Tensor:
        seen: Tensor = mask.visible(b, h, q_index + (start if isinstance(start, int) else start[b]), k_pos)
        if limited:
            seen = seen & (k_pos < (limit if isinstance(limit, int) else limit[b]))
        return seen

    return visible


def _tiles_of_band(problem: Problem, band: Band) -> tuple[Tensor, Tensor]:
    """Return which tiles hold a visible pair and which no hidden one ``[B or 1, 1, rows, columns]``."""
    p = problem
    kinds = list(p.kinds_of_rows())
    rows = kinds if len(kinds) == 1 else list(zip(p.query_starts, p.key_limits, strict=True))
    start, limit = torch.tensor(rows).T[..., None, None, None]
    index = torch.arange(0, p.seqlen_q, BLOCK)[:, None]
    first, end = start + index, start + (index + BLOCK).clamp(max=p.seqlen_q)
    last, left = end - 1, torch.arange(0, p.seqlen_k, BLOCK)
    right = left + BLOCK

    def interval(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys ``[lo, hi)`` from the first that ``low`` sees to the last that ``high`` sees."""
        lo = torch.zeros_like(low) if band.left is None else (low - band.left).clamp(min=0)
        hi = limit.expand_as(high) if band.right is None else torch.minimum(high + band.right + 1, limit)
        return lo, hi

    lo, hi = interval(first, last)
    visited = (left < hi) & (right > lo) & (lo < hi)
    lo, hi = interval(last, first)
    full = (left >= lo) & (right <= hi) & (end - first == BLOCK)
    return visited, full


def _tiles_of_rows(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the same ``[B or 1, H or 1, rows, columns]``, counting the visible pairs of each tile."""
    p, counts = problem, []
    tail = -p.seqlen_k % BLOCK
    for first in range(0, p.seqlen_q, BLOCK):
        index = torch.arange(first, min(first + BLOCK, p.seqlen_q))
        seen = visible_matrix(p, torch.device("cpu"), rows=index)
        columns = pad(seen, (0, tail)).unflatten(-1, (-1, BLOCK))
        counts.append(columns.sum(dim=(-3, -1)))
    pairs = torch.stack(counts, dim=-2)
    return pairs > 0, pairs == BLOCK * BLOCK


def _ordered(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of a row's tiles are meant, and all columns of the row with those first."""
    index = tiles.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32), index.to(torch.int32).contiguous()
