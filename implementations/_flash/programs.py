"""Programs of the FlashAttention kernels: tiles they visit, bytes they ask for, which of them stand for all.

In: a band, lengths, tile sizes. Out: exact integers, by tile of one head. Nothing enumerates positions. A
query tile reads the keys that one of its queries sees, a key tile the queries that see one of its keys: one
interval each, whose ends are clamped lines in the tile.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnbench.contract.cost import LSE_BYTES
from attnbench.contract.masks import Band
from attnbench.contract.problem import Problem
from attnbench.contract.sampling import Probe, ProgramSample, Progression, RowRange

from .tiles import Tile, tile_for

BOUNDS_BYTES = 8
"""What each program reads of ``bounds``: two int32."""
STATISTICS_BYTES = 8
"""Of a query row: its largest score and the log2 of its sum, float32."""
DELTA_BYTES = 4

Counts = NDArray[np.int64]


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


class Tiles(NamedTuple):
    """Of each tile of one head ``[T]``: rows that exist, rows read, and the interval ``[lo, hi)`` of the
    other side that it reads.
    """

    exist: Counts
    read: Counts
    lo: Counts
    hi: Counts

    @property
    def across(self) -> Counts:
        """Positions of the other side that a tile reads."""
        return self.hi - self.lo

    def visited(self, block: int) -> int:
        """Count the tiles of the grid that are visited, ``block`` positions of the other side wide."""
        blocks = -(-self.hi // block) - self.lo // block
        return int(np.where(self.hi > self.lo, blocks, 0).sum())


def query_tiles(band: Band, seqlen_q: int, start: int, limit: int, block_q: int) -> Tiles:
    """Return the query tiles of a head whose first query stands at ``start``, and the keys they read."""
    first = np.arange(0, seqlen_q, block_q, dtype=np.int64)
    rows = np.minimum(block_q, seqlen_q - first)
    lo = np.zeros_like(first) if band.left is None else np.clip(start + first - band.left, 0, limit)
    hi = np.full_like(first, limit)
    if band.right is not None:
        hi = np.clip(start + first + rows + band.right, 0, limit)
    return Tiles(rows, rows, lo, np.maximum(lo, hi))


def key_tiles(band: Band, seqlen_q: int, seqlen_k: int, start: int, limit: int, block_k: int) -> Tiles:
    """Return the key tiles of a head, and the queries they read; keys that no query sees are not read."""
    tile = np.arange(0, seqlen_k, block_k, dtype=np.int64)
    end = np.minimum(tile + block_k, seqlen_k)
    first, last = tile, np.minimum(end, limit)
    if band.left is not None:
        first = np.maximum(first, start - band.left)
    if band.right is not None:
        last = np.minimum(last, start + seqlen_q + band.right)
    seen = np.maximum(0, last - first)
    lo, hi = np.zeros_like(tile), np.full_like(tile, seqlen_q)
    if band.right is not None:
        lo = np.clip(first - band.right - start, 0, seqlen_q)
    if band.left is not None:
        hi = np.clip(last + band.left - start, 0, seqlen_q)
    lo = np.where(seen > 0, lo, 0)
    hi = np.where(seen > 0, np.maximum(lo, hi), 0)
    return Tiles(end - tile, seen, lo, hi)


def row_kinds(starts: Sequence[int], limits: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    """Batch rows by (query start, key limit): rows of one kind move the same bytes."""
    kinds: dict[tuple[int, int], list[int]] = {}
    for b, kind in enumerate(zip(starts, limits, strict=True)):
        kinds.setdefault(kind, []).append(b)
    return kinds


def head_tiles(kernel: str, band: Band, seqlens: tuple[int, int], kind: tuple[int, int], tile: Tile) -> Tiles:
    """Return the tiles of one head of a batch row of that kind, as the kernel's programs have them."""
    if kernel == "dkdv":
        return key_tiles(band, *seqlens, *kind, tile.block_k)
    return query_tiles(band, seqlens[0], *kind, tile.block_q)


def other_block(kernel: str, tile: Tile) -> int:
    """Return how many positions of the other side a program reads at a time."""
    return tile.block_q if kernel == "dkdv" else tile.block_k


def visited_tiles(
    kernel: str,
    band: Band,
    seqlens: tuple[int, int],
    starts: Sequence[int],
    limits: Sequence[int],
    tile: Tile,
) -> int:
    """Count the tiles ``block_q × block_k`` that the programs visit, of one query head of every batch row."""
    if 0 in seqlens:
        return 0
    block = other_block(kernel, tile)
    return sum(
        len(same) * head_tiles(kernel, band, seqlens, kind, tile).visited(block)
        for kind, same in row_kinds(starts, limits).items()
    )


class KernelPrograms:
    """The programs of one kernel (``forward``, ``dq`` or ``dkdv``) for a problem."""

    def __init__(self, problem: Problem, kernel: str) -> None:
        """Take the tile that the launch would take."""
        self.problem, self.kernel = problem, kernel
        self.tile: Tile = tile_for(problem, kernel=kernel)
        self.kinds = {} if is_empty(problem) else row_kinds(problem.query_starts, problem.key_limits)
        self._tiles: dict[tuple[int, int], Tiles] = {}
        self.heads = problem.num_kv_heads if kernel == "dkdv" else problem.num_heads

    def tiles(self, kind: tuple[int, int]) -> Tiles:
        """Return the tiles of one head of such a batch row."""
        if kind not in self._tiles:
            p, band = self.problem, effective_band(self.problem)
            self._tiles[kind] = head_tiles(self.kernel, band, (p.seqlen_q, p.seqlen_k), kind, self.tile)
        return self._tiles[kind]

    def visited(self) -> int:
        """Count the tiles ``block_q × block_k`` that all programs visit, of every query head."""
        block = other_block(self.kernel, self.tile)
        per_head = (len(same) * self.tiles(kind).visited(block) for kind, same in self.kinds.items())
        return self.problem.num_heads * sum(per_head)

    def program_bytes(self, tiles: Tiles) -> Counts:
        """Return the bytes that each program asks for ``[T]``; w = (D + Dv)·size.

        Forward: q, out and lse of its rows, k and v across: ``(rows + across)·w + 4·rows + 8``, with
        statistics if a backward pass follows. dq: q, do, out and dq of its rows, statistics and delta.
        dkdv: k and v of its rows, dk and dv whole, and across q, do, statistics and delta of every head of
        the group.
        """
        p = self.problem
        width = (p.head_dim + p.head_dim_v) * p.dtype_bytes
        across = tiles.across * width
        if self.kernel == "forward":
            kept = LSE_BYTES + (STATISTICS_BYTES if p.needs_gradients else 0)
            return BOUNDS_BYTES + across + tiles.read * (width + kept)
        if self.kernel == "dq":
            return BOUNDS_BYTES + across + tiles.read * (2 * width + STATISTICS_BYTES + DELTA_BYTES)
        queries = p.group_size * tiles.across * (width + STATISTICS_BYTES + DELTA_BYTES)
        return BOUNDS_BYTES + queries + (tiles.read + tiles.exist) * width

    def requested_bytes(self) -> int:
        """Return the bytes that all programs ask for."""
        per_head = (
            len(same) * int(self.program_bytes(self.tiles(kind)).sum()) for kind, same in self.kinds.items()
        )
        return self.heads * sum(per_head)

    def sample(self) -> ProgramSample:
        """Return the programs from which the bytes of all follow: both ends of every line of tiles.

        What a tile reads is a difference of two clamped lines, so the lines are few: one under a causal mask,
        two or three under a window, one more for a tail. Where the bytes change along a line, the program in
        its middle is run too, as a check. All heads, and batch rows of one kind, move the same: head 0 of
        the first such row is run.
        """
        pieces, rows = [], []
        for kind, same in self.kinds.items():
            tiles = self.tiles(kind)
            count, repeat = len(tiles.exist), self.heads * len(same)
            base = same[0] * self.heads * count
            quantities = np.stack([tiles.exist, tiles.read, tiles.across])
            for first, last in straight_lines(quantities):
                level = (quantities[:, first] == quantities[:, last]).all()
                chosen = sorted({first, last} if level else {first, (first + last) // 2, last})
                probes = tuple(Probe(t - first, base + self._place(t, count)) for t in chosen)
                pieces.append(Progression(last - first + 1, repeat, probes))
                rows += [RowRange(same[0], 0, *self._rows(t)) for t in chosen]
        return ProgramSample(tuple(pieces), None if self.kernel == "dkdv" else tuple(rows))

    def _place(self, tile: int, count: int) -> int:
        """Return the place of a tile's program in its head: the longest of a causal mask first."""
        return tile if self.kernel == "dkdv" else count - 1 - tile

    def _rows(self, tile: int) -> tuple[int, int]:
        first = tile * self.tile.block_q
        return first, min(first + self.tile.block_q, self.problem.seqlen_q)


def kernels_of(problem: Problem) -> tuple[str, ...]:
    """Return the kernels that a call in the problem's mode launches."""
    return {"bwd": ("dq", "dkdv"), "fwd_bwd": ("forward", "dq", "dkdv")}.get(problem.mode, ("forward",))


def programs_of(problem: Problem) -> list[KernelPrograms]:
    """Return the programs of each kernel that a call launches."""
    return [KernelPrograms(problem, kernel) for kernel in kernels_of(problem)]


def straight_lines(values: Counts) -> Iterator[tuple[int, int]]:
    """Cut the columns of ``values [quantity, T]`` into runs ``first … last`` of straight lines."""
    steps = np.diff(values, axis=1)
    turns = np.flatnonzero((np.diff(steps, axis=1) != 0).any(axis=0)) + 1
    first = 0
    for turn in turns.tolist():
        if turn >= first + 1:
            yield first, turn
            first = turn + 1
    yield first, values.shape[1] - 1
