"""Tile sizes of the linear-attention kernels. In: a problem. Out: chunk and block sizes, warps, stages.

The table (``tiles.toml``) is data: every entry was compiled ahead of time for its target. Without a
driver to ask, the answer is a fixed entry.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.contract.problem import Problem
from attnbench.implementations._flash.tiles import (
    SMALLEST_BLOCK,
    WIDEST_HEAD,
    current_target,
    nearest_target,
    padded_width,
    positions_fit,
)
from attnbench.implementations._shared.autotune import is_wanted


class LinearTile(NamedTuple):
    """A state every ``chunk_size`` tokens, ``block`` tokens and ``block_v`` columns a step."""

    chunk_size: int
    block: int
    block_v: int
    num_warps: int
    num_stages: int


@cache
def linear_tile_table() -> Mapping[str, Any]:
    """Return the table: target → direction → dtype → padded width → the five numbers of a tile."""
    return tomllib.loads(Path(__file__).with_name("tiles.toml").read_text(encoding="utf-8"))


def linear_tile_for(problem: Problem, direction: str, target: str | None = None) -> LinearTile:
    """Return the tile of the ``forward`` or ``backward`` kernels on a target, by default on what is here.

    The option ``chunk_size`` overrides the table's; a block is no longer than a chunk. Where a search is
    wanted (``autotune``), what is here takes the fastest tile that it found.
    """
    p = problem
    if target is None and p.option("chunk_size") is None and is_wanted(p.device):
        from .autotune import fastest_tile  # loads triton

        return fastest_tile(p, direction)
    table = linear_tile_table()
    widths = table[nearest_target(target or current_target(p.device), table)][direction][p.dtype]
    width = padded_width(max(p.head_dim, p.head_dim_v))
    tile = LinearTile(*widths[str(min(int(listed) for listed in widths if int(listed) >= width))])
    chunk_size = int(p.option("chunk_size") or tile.chunk_size)
    return tile._replace(chunk_size=chunk_size, block=min(tile.block, chunk_size))


def column_block(width: int, tile: LinearTile) -> tuple[int, int]:
    """Return how many columns a program computes, and how many programs that takes."""
    block = min(tile.block_v, padded_width(width))
    return block, -(-width // block)


def kernels_take(problem: Problem) -> bool:
    """Whether the kernels take the problem: no float64, heads up to 256 wide, chunks of a power of two."""
    p = problem
    chunk_size = p.option("chunk_size") or SMALLEST_BLOCK
    return (
        p.dtype != "float64"
        and positions_fit(p)
        and max(p.head_dim, p.head_dim_v) <= WIDEST_HEAD
        and chunk_size >= SMALLEST_BLOCK
        and chunk_size & (chunk_size - 1) == 0
    )
