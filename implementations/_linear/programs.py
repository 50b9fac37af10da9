"""What each program of the linear-attention kernels moves and computes. In: a shape. Out: integers.

For a batch row the programs of one head, ``[tiles or chunks, column blocks]``; the other heads do the same.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem
from attnbench.implementations._flash.tiles import padded_width

from .geometry import Geometry, Row, geometry
from .tiles import LinearTile, column_block, linear_tile_for

Integers = NDArray[np.int64]
FLOAT_BYTES = 4
SCAN_COLUMNS = 256
"""Columns of the states that a program of the scan adds up."""


def state_size(head_dim: int, value_dim: int) -> int:
    """Numbers in a state: ``Σ bᵀ v`` and the normaliser ``Σ b``."""
    return head_dim * (value_dim + 1)


class Shape(NamedTuple):
    """What a launch depends on."""

    heads: int
    kv_heads: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    value_dim: int
    dtype_bytes: int
    causal: bool
    tile: LinearTile
    where: Geometry

    @property
    def group(self) -> int:
        """Query heads of a key/value head."""
        return self.heads // self.kv_heads

    @property
    def state_parts(self) -> int:
        """Products with a state: one in float32; in 16 bits the state is read and multiplied in two parts."""
        return 1 if self.dtype_bytes == FLOAT_BYTES else 2


def shape_of(problem: Problem, direction: str) -> Shape:
    """Return the shape of a problem's forward or backward pass on what is here."""
    p = problem
    return make_shape(
        (p.num_heads, p.num_kv_heads),
        (p.seqlen_q, p.seqlen_k),
        (p.head_dim, p.head_dim_v),
        p.dtype_bytes,
        (p.query_starts, p.key_limits, isinstance(p.mask, Causal)),
        linear_tile_for(p, direction),
    )


def make_shape(
    heads: tuple[int, int],
    lengths: tuple[int, int],
    widths: tuple[int, int],
    dtype_bytes: int,
    form: tuple[Sequence[int], Sequence[int], bool],
    tile: LinearTile,
) -> Shape:
    """Return a shape from pairs of query and key heads, lengths, widths, and what the operators are given."""
    starts, limits, causal = form
    where = geometry(starts, limits, lengths[0], causal, tile.chunk_size, tile.block)
    return Shape(*heads, *lengths, *widths, dtype_bytes, causal, tile, where)


class Work(NamedTuple):
    """Of each program: bytes that its loads and stores ask for, FLOPs of its products on whole blocks, and
    exponentials.
    """

    requested: Integers
    flops: Integers
    exponentials: Integers


def column_widths(width: int, tile: LinearTile) -> tuple[Integers, int]:
    """Return how many columns each block has, and how many it is padded to."""
    block, count = column_block(width, tile)
    return np.minimum(block, width - block * np.arange(count, dtype=np.int64)), block


def _overlap(first: Any, length: int, lo: Any, hi: Any) -> Integers:
    """How many of ``length`` positions from ``first`` on lie in ``lo … hi-1``."""
    return np.asarray(np.maximum(np.minimum(first + length, hi) - np.maximum(first, lo), 0), dtype=np.int64)


def _steps(tokens: Integers, block: int) -> Integers:
    return -(-tokens // block)


def _work(shape: tuple[int, int], requested: Any, flops: Any, exponentials: Any) -> Work:
    return Work(*(np.broadcast_to(x, shape).astype(np.int64) for x in (requested, flops, exponentials)))


def _first_block(blocks: int) -> Integers:
    return np.asarray(np.arange(blocks) == 0, dtype=np.int64)


def states(s: Shape, row: Row) -> Work:
    """``Σ b_jᵀ [v_j, 1]`` of each chunk of keys."""
    widths, block_v = column_widths(s.value_dim, s.tile)
    chunks = np.arange(s.where.key_chunks, dtype=np.int64)[:, None]
    keys = _overlap(chunks * s.tile.chunk_size, s.tile.chunk_size, 0, row.key_limit)
    some = keys > 0
    stored = FLOAT_BYTES * s.head_dim * (widths + _first_block(len(widths)))
    loaded = keys * (s.head_dim + widths) * s.dtype_bytes
    blocks, padded = _steps(keys, s.tile.block) * s.tile.block, padded_width(s.head_dim)
    return _work(
        (len(chunks), len(widths)),
        4 + some * (loaded + stored),
        2 * blocks * padded * block_v,
        blocks * padded,
    )


def scan(s: Shape, row: Row, *, reverse: bool = False) -> Work:
    """Running sums of the states; of every chunk if causal, else the total alone is stored."""
    size = state_size(s.head_dim, s.value_dim)
    blocks = -(-size // SCAN_COLUMNS)
    widths = np.minimum(SCAN_COLUMNS, size - SCAN_COLUMNS * np.arange(blocks, dtype=np.int64))[None, :]
    count = row.query_chunks if reverse else row.key_chunks
    stored = count if s.causal else min(count, 1)
    return _work((1, blocks), 4 + FLOAT_BYTES * (count + stored) * widths, 0, 0)


def _query_tiles(s: Shape, row: Row) -> tuple[Integers, ...]:
    """Return, of each tile of queries ``[tiles, 1]``: rows, rows that see a key, whether there is a state,
    keys that are read one by one.
    """
    block, chunk_size = s.tile.block, s.tile.chunk_size
    first = row.query_start // block * block + block * np.arange(s.where.query_tiles, dtype=np.int64)[:, None]
    end = row.query_start + s.seqlen_q
    exist = _overlap(first, block, row.query_start, end)
    see = _overlap(first, block, max(row.query_start, 0), end)
    if not s.causal:
        some = np.full_like(first, row.key_chunks > 0)
        return exist, see, some, np.zeros_like(first)
    chunk = np.minimum(np.maximum(first, 0) // chunk_size, row.key_chunks)
    keys = np.maximum(np.minimum(first + block, row.key_limit) - chunk * chunk_size, 0)
    return exist, see, (chunk > 0).astype(np.int64), keys


def output(s: Shape, row: Row) -> Work:
    """Out and denominators."""
    widths, block_v = column_widths(s.value_dim, s.tile)
    exist, see, state, keys = _query_tiles(s, row)
    d, size, block, padded = s.head_dim, s.dtype_bytes, s.tile.block, padded_width(s.head_dim)
    steps = _steps(keys, block)
    moved = 8 + see * d * size + state * FLOAT_BYTES * d * (s.state_parts * widths + 1)
    moved = moved + keys * (d + widths) * size
    moved = moved + exist * (widths * size + FLOAT_BYTES * _first_block(len(widths)))
    return _work(
        (len(exist), len(widths)),
        moved,
        2 * block * (s.state_parts * padded * block_v + steps * block * (padded + block_v)),
        (1 + steps) * block * padded,
    )


def dq(s: Shape, row: Row) -> Work:
    """dq and ``-δ / t``."""
    widths, block_d = column_widths(s.head_dim, s.tile)
    exist, see, state, keys = _query_tiles(s, row)
    e, size, block, padded = s.value_dim, s.dtype_bytes, s.tile.block, padded_width(s.value_dim)
    steps = _steps(keys, block)
    moved = 8 + see * (2 * e + widths) * size + state * FLOAT_BYTES * widths * (s.state_parts * e + 1)
    moved = moved + keys * (e + widths) * size + exist * widths * size
    moved = moved + exist * FLOAT_BYTES * (1 + _first_block(len(widths)))
    return _work(
        (len(exist), len(widths)),
        moved,
        2 * block * (s.state_parts * padded * block_d + steps * block * (padded + block_d)),
        (1 + steps) * block * block_d,
    )


def query_states(s: Shape, row: Row) -> Work:
    """``Σ (a_i / t_i)ᵀ [do_i, -δ_i]`` of each chunk of queries, over the heads of a group."""
    widths, block_v = column_widths(s.value_dim, s.tile)
    chunk_size, block, first_pos = s.tile.chunk_size, s.tile.block, max(row.query_start, 0)
    chunks = np.arange(s.where.query_chunks, dtype=np.int64)[:, None]
    first = (first_pos // chunk_size + chunks) * chunk_size
    some = chunks < row.query_chunks
    queries = some * _overlap(first, chunk_size, first_pos, row.query_start + s.seqlen_q)
    begin = np.maximum(first, first_pos // block * block)
    end = np.minimum(first + chunk_size, row.query_start + s.seqlen_q)
    blocks = some * s.group * _steps(np.maximum(end - begin, 0), block) * block
    padded = padded_width(s.head_dim)
    loaded = s.group * queries * ((s.head_dim + widths) * s.dtype_bytes + 2 * FLOAT_BYTES)
    stored = FLOAT_BYTES * s.head_dim * (widths + _first_block(len(widths)))
    return _work(
        (len(chunks), len(widths)),
        4 + some * (4 + loaded + stored),
        2 * blocks * padded * block_v,
        blocks * padded,
    )


def keys_gradient(s: Shape, row: Row, *, of_keys: bool) -> Work:
    """dk (``of_keys``) or dv."""
    inner, outer = (s.value_dim, s.head_dim) if of_keys else (s.head_dim, s.value_dim)
    widths, block_outer = column_widths(outer, s.tile)
    chunk_size, block, size, padded = s.tile.chunk_size, s.tile.block, s.dtype_bytes, padded_width(inner)
    first = np.arange(0, s.seqlen_k, block, dtype=np.int64)[:, None]
    exist = _overlap(first, block, 0, s.seqlen_k)
    seen = _overlap(first, block, 0, row.key_limit)
    first_pos, end_pos = max(row.query_start, 0), row.query_start + s.seqlen_q
    slot: Any = 0
    queries = blocks = np.zeros_like(first)
    if s.causal:
        slot = np.maximum(first // chunk_size + 1 - first_pos // chunk_size, 0)
        begin = np.maximum(first, first_pos // block * block)
        end = np.minimum((first // chunk_size + 1) * chunk_size, end_pos)
        alive = seen > 0
        queries = alive * np.maximum(end - np.maximum(begin, first_pos), 0)
        blocks = alive * s.group * _steps(np.maximum(end - begin, 0), block)
    state = (slot < row.query_chunks) & (seen > 0)
    moved = 12 + seen * (inner + of_keys * widths) * size + exist * widths * size
    moved = moved + state * FLOAT_BYTES * widths * (s.state_parts * inner + of_keys)
    moved = moved + s.group * queries * ((inner + widths) * size + FLOAT_BYTES * (1 + of_keys))
    return _work(
        (len(first), len(widths)),
        moved,
        2 * block * (s.state_parts * padded * block_outer + blocks * block * (padded + block_outer)),
        (1 + blocks) * block * (block_outer if of_keys else padded),
    )


def kinds(where: Geometry) -> Iterator[tuple[int, Row, int]]:
    """Yield ``(first batch row, row, batch rows alike)``."""
    counted: dict[Row, list[int]] = {}
    for b, row in enumerate(where.rows):
        counted.setdefault(row, []).append(b)
    for row, same in counted.items():
        yield same[0], row, len(same)
