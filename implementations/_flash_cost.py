"""What the FlashAttention kernel costs, and which programs stand for all. In: a problem. Out: exact integers.

Letters: B batch, H query heads, D and Dv widths, T query tiles. Nothing enumerates positions; all sums run
over T.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnbench.contract.cost import (
    LSE_BYTES,
    Cost,
    compulsory_bytes,
    from_cache,
    tensor_bytes,
    useful_flops,
)
from attnbench.contract.implementation import KernelSpec
from attnbench.contract.launch import Launch
from attnbench.contract.masks import Band, BandMask
from attnbench.contract.problem import Problem
from attnbench.contract.sampling import Probe, ProgramSample, Progression, RowRange

from ._flash_tiles import Tile, padded_width, tile_for

BOUNDS_BYTES = 8
"""What each program reads of ``bounds``: two int32."""


def is_empty(problem: Problem) -> bool:
    """Whether nothing is launched: no query, or no key to read."""
    p = problem
    return 0 in (p.batch, p.seqlen_q, p.seqlen_k)


def effective_band(problem: Problem) -> Band:
    """Return the mask's band without sides that hide nothing: a window of the sequence's length is causal."""
    band = problem.mask.band()
    if band is None or is_empty(problem):
        return Band(None, None)
    starts = problem.query_starts
    last_query = max(starts) + problem.seqlen_q - 1
    last_key = max(problem.key_limits) - 1
    left = None if band.left is None or band.left >= last_query else band.left
    right = None if band.right is None or min(starts) + band.right >= last_key else band.right
    return Band(left, right)


def _tile_rows(problem: Problem, tile: Tile) -> NDArray[np.int64]:
    """Query rows of each tile ``[T]``: all are full but the last."""
    first = np.arange(0, problem.seqlen_q, tile.block_q, dtype=np.int64)
    return np.minimum(tile.block_q, problem.seqlen_q - first)


def _keys_read(problem: Problem, tile: Tile, b: int) -> NDArray[np.int64]:
    """Keys that each query tile of batch row ``b`` reads ``[T]``: those that one of its queries sees."""
    assert isinstance(problem.mask, BandMask)
    rows = _tile_rows(problem, tile)
    first = problem.query_starts[b] + tile.block_q * np.arange(len(rows), dtype=np.int64)
    lo, hi = problem.mask.interval(first, first + rows - 1, problem.key_limits[b])
    return np.asarray(hi - lo)


def _row_kinds(problem: Problem) -> dict[tuple[int, int], list[int]]:
    """Batch rows by (query start, key limit): rows of one kind move the same bytes."""
    kinds: dict[tuple[int, int], list[int]] = {}
    for b, kind in enumerate(zip(problem.query_starts, problem.key_limits, strict=True)):
        kinds.setdefault(kind, []).append(b)
    return kinds


def requested_bytes(problem: Problem) -> int:
    """Bytes that the kernel's loads and stores ask for: keys and values for every query tile, the rest once.

    ``Σ over programs of (rows + keys_read)·(D + Dv)·size + 4·rows + 8``; the last two are lse and ``bounds``.
    """
    p = problem
    if is_empty(p):
        return 0
    tile = tile_for(p)
    width_bytes = (p.head_dim + p.head_dim_v) * p.dtype_bytes
    tiles = len(_tile_rows(p, tile))
    keys = sum(len(same) * int(_keys_read(p, tile, same[0]).sum()) for same in _row_kinds(p).values())
    rows = p.batch * p.num_heads * p.seqlen_q
    return (
        (rows + p.num_heads * keys) * width_bytes
        + rows * LSE_BYTES
        + p.batch * p.num_heads * tiles * BOUNDS_BYTES
    )


@from_cache
def cost(problem: Problem) -> Cost:
    """Exact counts of one forward call.

    Executed FLOPs are whole tiles with heads padded to a power of two: ``2·visited·block_q·block_k·(pad(D) +
    pad(Dv))``. A visited tile evaluates ``block_q·(block_k + 1)`` exponentials: one a pair and one to rescale
    each row. The one operator reads q, k and v, writes out and lse and allocates nothing else (``bounds``, 8
    bytes a batch row, is kept).
    """
    p = problem
    tile = tile_for(p)
    visited = 0 if is_empty(p) else p.visited_tiles(tile.block_q, tile.block_k)
    size = tensor_bytes(p)
    pairs = _leading_pairs(p)
    return Cost(
        flops=useful_flops(p),
        executed_flops=2
        * visited
        * tile.block_q
        * tile.block_k
        * (padded_width(p.head_dim) + padded_width(p.head_dim_v)),
        exponentials=visited * tile.block_q * (tile.block_k + 1),
        compulsory_bytes=compulsory_bytes(p),
        operand_bytes=sum(size.values()),
        requested_bytes=requested_bytes(p),
        peak_bytes=size["out"] + size["lse"],
        leading={
            "flops": f"2*B*H*{pairs}*(d+e)",
            "executed_flops": f"2*B*H*{pairs}*(d+e)",
            "exponentials": f"B*H*{pairs}",
            "operand_bytes": f"{p.dtype_bytes}*B*(H*n + G*m)*(d+e)",
            "requested_bytes": f"{p.dtype_bytes}*B*H*{pairs}*(d+e)/{tile.block_q}",
            "peak_bytes": f"B*H*n*({p.dtype_bytes}*e + {LSE_BYTES})",
        },
    )


def _leading_pairs(problem: Problem) -> str:
    """Visible pairs of a head to leading order, as people write it."""
    left, right = effective_band(problem)
    if left is None and right is None:
        return "n*m"
    if left is None:
        return "n*(m - n/2)"
    return "n*W" if right == 0 else "2*n*W"


def sample_programs(problem: Problem) -> ProgramSample:
    """Return the programs from which the bytes of all follow: both ends of every line of query tiles.

    The keys that a tile reads are a difference of two clamped lines, so the lines are few: one under a causal
    mask, two or three under a window, one more for a tail. Where the bytes change along a line, the program
    in its middle is run too, as a check. All heads, and batch rows of one kind, move the same: head 0 of the
    first such row is run.
    """
    p = problem
    if is_empty(p):
        return ProgramSample((), ())
    tile = tile_for(p)
    rows = _tile_rows(p, tile)
    tiles = len(rows)
    pieces, computed = [], []
    for same in _row_kinds(p).values():
        b = same[0]
        base = b * p.num_heads * tiles
        keys = _keys_read(p, tile, b)
        for first, last in _lines(np.stack([keys, rows])):
            level = keys[first] == keys[last]
            chosen = sorted({first, last} if level else {first, (first + last) // 2, last})
            probes = tuple(Probe(t - first, base + tiles - 1 - t) for t in chosen)
            pieces.append(Progression(last - first + 1, p.num_heads * len(same), probes))
            computed += [RowRange(b, 0, t * tile.block_q, t * tile.block_q + int(rows[t])) for t in chosen]
    return ProgramSample(tuple(pieces), tuple(computed))


def _lines(values: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Cut the columns of ``values [quantity, T]`` into runs ``first … last`` of straight lines."""
    steps = np.diff(values, axis=1)
    turns = np.flatnonzero((np.diff(steps, axis=1) != 0).any(axis=0)) + 1
    runs, first = [], 0
    for turn in turns.tolist():
        if turn >= first + 1:
            runs.append((first, turn))
            first = turn + 1
    return [*runs, (first, values.shape[1] - 1)]


def _kernel() -> Any:
    from ._flash_kernel import flash_forward_kernel  # loads triton

    return flash_forward_kernel


def _variants(problem: Problem, target: str) -> Sequence[Launch]:
    from ._flash_launch import forward_variants  # loads torch

    return forward_variants(problem, target)


KERNEL = KernelSpec(
    name="flash_forward_kernel", function=_kernel, sample_programs=sample_programs, variants=_variants
)
"""The kernel, for whoever runs it."""
