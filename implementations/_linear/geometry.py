"""Where chunks of keys and tiles of queries lie. In: positions and lengths. Out: integers.

Chunks and tiles start at multiples of their length, so a tile of queries lies in one chunk.
"""

from collections.abc import Sequence
from typing import NamedTuple

from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem


class Row(NamedTuple):
    """One batch row: position of its first query (all are negative if none sees a key), keys that are seen,
    chunks of these keys, chunks of its queries from position 0 on.
    """

    query_start: int
    key_limit: int
    key_chunks: int
    query_chunks: int


class Geometry(NamedTuple):
    """All batch rows, and how many chunks of keys, chunks of queries and tiles of queries the longest has."""

    rows: tuple[Row, ...]
    key_chunks: int
    query_chunks: int
    query_tiles: int


def _row(start: int, limit: int, seqlen_q: int, causal: bool, chunk_size: int) -> Row:
    if not causal:
        start = 0
    elif limit > start + seqlen_q:
        limit = max(0, start + seqlen_q)
    if limit == 0 or seqlen_q == 0:
        return Row(-seqlen_q, 0, 0, 0)
    chunks = (start + seqlen_q - 1) // chunk_size - max(start, 0) // chunk_size + 1
    return Row(start, limit, -(-limit // chunk_size), chunks)


def geometry(
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    seqlen_q: int,
    causal: bool,
    chunk_size: int,
    block: int,
) -> Geometry:
    """Return the geometry of ``seqlen_q`` queries from ``query_starts[b]`` on over ``key_limits[b]`` keys."""
    rows = tuple(
        _row(start, limit, seqlen_q, causal, chunk_size)
        for start, limit in zip(query_starts, key_limits, strict=True)
    )
    return Geometry(
        rows,
        max((row.key_chunks for row in rows), default=0),
        max((row.query_chunks for row in rows), default=0),
        max((-(-(row.query_start % block + seqlen_q) // block) for row in rows), default=0),
    )


def geometry_of(problem: Problem, chunk_size: int, block: int) -> Geometry:
    """Return the geometry of a problem under a causal or a full mask."""
    p = problem
    causal = isinstance(p.mask, Causal)
    return geometry(p.query_starts, p.key_limits, p.seqlen_q, causal, chunk_size, block)
