"""How a band of the score matrix is cut into tiles and the tiles into operations. In: lengths and the band. Out: plain integers, no tensors."""

from collections.abc import Iterator
from typing import NamedTuple

BLOCK_ROWS = 32
"""Queries a tile: more waste at the edges of the band, fewer make the matmuls too thin."""
SCRATCH_ELEMENTS = 1 << 20
"""Scores that one operation makes: 4 MB in float32, which stays in a last-level cache."""


class Tiles(NamedTuple):
    """``count`` tiles of ``rows`` queries × ``keys`` keys; tile t begins at query ``row + t * rows`` and key ``key + t * rows``."""

    row: int
    rows: int
    key: int
    keys: int
    count: int


class Operation(NamedTuple):
    """One batched matmul's worth of tiles: many of one head (``heads`` an int), or one tile of many heads (``heads`` a slice).

    ``heads`` index the flattened ``B·H`` query heads, ``kv_heads`` the key/value heads that they read.
    """

    heads: int | slice
    kv_heads: int | slice
    tiles: Tiles


def rows_seeing(seqlen_q: int, seqlen_k: int, lo: int, hi: int) -> tuple[int, int]:
    """Return ``[first, last)``: the queries that see a key under the band ``lo <= key - query <= hi``."""
    if seqlen_k == 0:
        return 0, 0
    first = min(max(0, -hi), seqlen_q)
    return first, max(first, min(seqlen_q, seqlen_k - lo))


def _clipped(first: int, last: int, seqlen_k: int, lo: int, hi: int) -> Iterator[Tiles]:
    """Yield one tile at a time: near the ends of the sequence the keys of a block are cut off."""
    for row in range(first, last, BLOCK_ROWS):
        end = min(row + BLOCK_ROWS, last)
        key = max(0, row + lo)
        yield Tiles(row, end - row, key, min(seqlen_k, end + hi) - key, 1)


def band_tiles(seqlen_q: int, seqlen_k: int, lo: int, hi: int) -> Iterator[Tiles]:
    """Cover the band ``lo <= key - query <= hi`` of one head: a growing start, equal tiles in the middle, a shrinking end."""
    first, last = rows_seeing(seqlen_q, seqlen_k, lo, hi)
    inner_last = min(last, seqlen_k - hi)
    count = max(0, inner_last - max(first, -lo)) // BLOCK_ROWS
    inner_last = inner_last if count else last
    inner_first = inner_last - count * BLOCK_ROWS
    yield from _clipped(first, inner_first, seqlen_k, lo, hi)
    if count:
        yield Tiles(inner_first, BLOCK_ROWS, inner_first + lo, BLOCK_ROWS + hi - lo, count)
    yield from _clipped(inner_last, last, seqlen_k, lo, hi)


def operations(tiles: Tiles, num_heads: int, group_size: int) -> Iterator[Operation]:
    """Cut ``tiles`` of every one of ``num_heads`` query heads into operations of bounded size, along heads or tiles: whichever are fewer."""
    limit = max(1, SCRATCH_ELEMENTS // (tiles.rows * tiles.keys))
    kv_heads = num_heads // group_size
    if tiles.count * group_size * -(-kv_heads // limit) <= num_heads * -(-tiles.count // limit):
        for t in range(tiles.count):
            one = Tiles(tiles.row + t * tiles.rows, tiles.rows, tiles.key + t * tiles.rows, tiles.keys, 1)
            for first in range(0, kv_heads, limit):
                last = min(first + limit, kv_heads)
                for member in range(group_size):
                    heads = slice(first * group_size + member, last * group_size, group_size)
                    yield Operation(heads, slice(first, last), one)
        return
    for head in range(num_heads):
        for t in range(0, tiles.count, limit):
            part = Tiles(
                tiles.row + t * tiles.rows,
                tiles.rows,
                tiles.key + t * tiles.rows,
                tiles.keys,
                min(limit, tiles.count - t),
            )
            yield Operation(head, head // group_size, part)
