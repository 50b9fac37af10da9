"""How a band of scores is cut into tiles and the tiles into operations. In: a problem. Out: integers.

The band is ``lo <= key - query <= hi`` in indices of one batch run: query i stands at ``query_start + i``.
"""

from collections.abc import Iterator
from typing import NamedTuple

from attnbench.contract.problem import Problem
from attnbench.implementations._shared.batch_runs import BatchRun

BLOCK_ROWS = 32
"""Queries a tile: more of them waste work at the edges of the band, fewer make the matmuls too thin."""
SCORES_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Scores that one operation makes: what stays in a cache (1 MiB in float32), or fills a GPU."""


class Tiles(NamedTuple):
    """``num_tiles`` tiles of ``rows`` queries × ``keys`` keys, each ``rows`` further along the diagonal."""

    row: int
    rows: int
    key: int
    keys: int
    num_tiles: int


class Operation(NamedTuple):
    """``num_tiles`` tiles of ``rows × keys`` as one batched matmul: of one head, or one of several heads.

    Tile t reads query head ``head + t·head_step``, key/value head ``kv_head + t·kv_step``, and the rows and
    keys from ``row + t·step`` and ``key + t·step`` on. Heads are counted over the batch run.
    """

    num_tiles: int
    rows: int
    keys: int
    row: int
    key: int
    step: int
    head: int
    head_step: int
    kv_head: int
    kv_step: int


class Band(NamedTuple):
    """The band of one batch run: query i sees key j iff ``lo <= j - i <= hi`` and ``0 <= j < num_keys``.

    Keys are counted from ``first_key``, the first that any query sees, and end with the last.
    """

    seqlen_q: int
    first_key: int
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
        """Cover the band of one head: tiles that grow, tiles that are equal, tiles that shrink."""
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
    lo, hi = run.query_start - band.left, run.query_start + band.right
    first = min(max(0, lo), run.num_keys)
    last = max(first, min(problem.seqlen_q + hi, run.num_keys))
    return Band(problem.seqlen_q, first, last - first, lo - first, hi - first)


def operations(problem: Problem, run: BatchRun) -> Iterator[Operation]:
    """Yield the operations of a batch run, each along heads or along tiles: whichever takes fewer."""
    group_size, kv_heads = problem.group_size, run.batch * problem.num_kv_heads
    at_once = SCORES_AT_ONCE["cpu" if problem.device == "cpu" else "cuda"]
    for tiles in band_of(problem, run).tiles():
        limit = max(1, at_once // (tiles.rows * tiles.keys))
        if tiles.num_tiles * -(-kv_heads // limit) <= kv_heads * -(-tiles.num_tiles // limit):
            yield from _along_heads(tiles, kv_heads, group_size, limit)
        else:
            yield from _along_tiles(tiles, kv_heads, group_size, limit)


def _along_heads(tiles: Tiles, kv_heads: int, group_size: int, limit: int) -> Iterator[Operation]:
    for t in range(tiles.num_tiles):
        row, key = tiles.row + t * tiles.rows, tiles.key + t * tiles.rows
        for first in range(0, kv_heads, limit):
            count = min(limit, kv_heads - first)
            for head in range(first * group_size, (first + 1) * group_size):
                yield Operation(count, tiles.rows, tiles.keys, row, key, 0, head, group_size, first, 1)


def _along_tiles(tiles: Tiles, kv_heads: int, group_size: int, limit: int) -> Iterator[Operation]:
    for head in range(kv_heads * group_size):
        for t in range(0, tiles.num_tiles, limit):
            row, key = tiles.row + t * tiles.rows, tiles.key + t * tiles.rows
            count = min(limit, tiles.num_tiles - t)
            yield Operation(
                count, tiles.rows, tiles.keys, row, key, tiles.rows, head, 0, head // group_size, 0
            )


class Triangle(NamedTuple):
    """A hidden corner of a tile: in columns from ``first`` on, what is ``below`` the diagonal, or above."""

    first: int
    rows: int
    columns: int
    diagonal: int
    below: bool


def hidden_corners(o: Operation, band: Band) -> list[Triangle]:
    """Return the corners outside the band: row r sees the columns from ``r + left`` to ``r + right``."""
    left, right = o.row + band.lo - o.key, o.row + band.hi - o.key
    at_start, at_end = min(o.keys, max(0, o.rows - 1 + left)), o.keys - min(o.keys, max(0, right + 1))
    corners = (
        Triangle(0, o.rows, at_start, left - 1, below=True),
        Triangle(o.keys - at_end, o.rows, at_end, right + 1 - (o.keys - at_end), below=False),
    )
    return [corner for corner in corners if corner.columns]
