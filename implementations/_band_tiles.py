"""How a band of the score matrix is cut into tiles, and the tiles into operations. In: a problem. Out: integers, no tensors.

The band is ``lo <= key - query <= hi`` in indices of one batch run: query i stands at ``query_start + i``.
"""

from collections.abc import Iterator
from typing import NamedTuple

from attnbench.contract.problem import Problem

from ._batch_runs import BatchRun

BLOCK_ROWS = 32
"""Queries a tile: more of them waste work at the edges of the band, fewer make the matmuls too thin."""
SCORES_AT_ONCE = 1 << 20
"""Scores that one operation makes: 4 MiB in float32, which stay in a last-level cache."""


class Tiles(NamedTuple):
    """``count`` tiles of ``rows`` queries × ``keys`` keys, each ``rows`` queries and keys further than the last."""

    row: int
    rows: int
    key: int
    keys: int
    count: int

    def part(self, first: int, count: int) -> "Tiles":
        """Return ``count`` of the tiles, from ``first`` on."""
        shift = first * self.rows
        return Tiles(self.row + shift, self.rows, self.key + shift, self.keys, count)


class Operation(NamedTuple):
    """The tiles of one batched matmul: several of one head (``heads`` an int) or one of several heads (a slice).

    ``heads`` index the flattened ``b·H`` query heads, ``kv_heads`` the key/value heads that they read.
    """

    heads: int | slice
    kv_heads: int | slice
    tiles: Tiles

    @property
    def count(self) -> int:
        """Tiles in all."""
        heads = self.kv_heads
        return heads.stop - heads.start if isinstance(heads, slice) else self.tiles.count


class Band(NamedTuple):
    """The band of one batch run: query i sees key j iff ``lo <= j - i <= hi`` and ``0 <= j < num_keys``."""

    seqlen_q: int
    num_keys: int
    lo: int
    hi: int

    @property
    def seeing(self) -> tuple[int, int]:
        """``[first, last)``: the queries that see a key."""
        if self.num_keys == 0:
            return 0, 0
        first = min(max(0, -self.hi), self.seqlen_q)
        return first, max(first, min(self.seqlen_q, self.num_keys - self.lo))

    def _clipped(self, first: int, last: int) -> Iterator[Tiles]:
        """Yield one tile at a time: near the ends of the sequence the keys of a block are cut off."""
        for row in range(first, last, BLOCK_ROWS):
            end = min(row + BLOCK_ROWS, last)
            key = max(0, row + self.lo)
            yield Tiles(row, end - row, key, min(self.num_keys, end + self.hi) - key, 1)

    def tiles(self) -> Iterator[Tiles]:
        """Cover the band of one head: growing tiles at the start, equal ones in the middle, shrinking ones at the end."""
        first, last = self.seeing
        inner_last = min(last, self.num_keys - self.hi)
        count = max(0, inner_last - max(first, -self.lo)) // BLOCK_ROWS
        inner_last = inner_last if count else last
        inner_first = inner_last - count * BLOCK_ROWS
        yield from self._clipped(first, inner_first)
        if count:
            yield Tiles(inner_first, BLOCK_ROWS, inner_first + self.lo, BLOCK_ROWS + self.hi - self.lo, count)
        yield from self._clipped(inner_last, last)


def band_of(problem: Problem, run: BatchRun) -> Band:
    """Return the band of a mask that is bounded on both sides."""
    band = problem.mask.band()
    if band is None or band.left is None or band.right is None:
        raise ValueError(f"{problem.mask} is not a band bounded on both sides")
    return Band(problem.seqlen_q, run.num_keys, run.query_start - band.left, run.query_start + band.right)


def operations(problem: Problem, run: BatchRun) -> Iterator[Operation]:
    """Yield the operations of a batch run, each along heads or along tiles: whichever takes fewer."""
    group_size, kv_heads = problem.group_size, run.batch * problem.num_kv_heads
    for tiles in band_of(problem, run).tiles():
        limit = max(1, SCORES_AT_ONCE // (tiles.rows * tiles.keys))
        along_heads = tiles.count * -(-kv_heads // limit)
        along_tiles = kv_heads * -(-tiles.count // limit)
        if along_heads <= along_tiles:
            for t in range(tiles.count):
                for first in range(0, kv_heads, limit):
                    last = min(first + limit, kv_heads)
                    for member in range(group_size):
                        heads = slice(first * group_size + member, last * group_size, group_size)
                        yield Operation(heads, slice(first, last), tiles.part(t, 1))
        else:
            for head in range(kv_heads * group_size):
                for t in range(0, tiles.count, limit):
                    part = tiles.part(t, min(limit, tiles.count - t))
                    yield Operation(head, head // group_size, part)
