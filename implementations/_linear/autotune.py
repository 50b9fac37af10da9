"""The search for tiles of the linear-attention kernels. In: a problem, a direction. Out: the fastest tile.

Both directions are timed as they run, all kernels of a pass together.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem
from attnbench.implementations._flash.programs import is_empty
from attnbench.implementations._flash.tiles import SMALLEST_BLOCK, current_target, padded_width
from attnbench.implementations._shared.autotune import (
    Found,
    Steps,
    doubled_or_halved,
    one_more_or_less,
    search,
    table_row,
    with_neighbours,
)
from attnbench.implementations._shared.autotune_gpu import (
    alike,
    in_words,
    random_inputs,
    searched,
    time_on_gpu,
)

from . import forward as registered  # noqa: F401  registers an operator
from .gradients import linear_gradients
from .tiles import LinearTile, linear_tile_for, linear_tile_table

STEPS: Steps = {
    "chunk_size": doubled_or_halved(SMALLEST_BLOCK, 1024),
    "block": doubled_or_halved(SMALLEST_BLOCK, 128),
    "block_v": doubled_or_halved(SMALLEST_BLOCK, 256),
    "num_warps": doubled_or_halved(2, 16),
    "num_stages": one_more_or_less(4),
}


def fastest_tile(problem: Problem, direction: str) -> LinearTile:
    """Return the fastest tile of a pass for problems ``alike`` on the current GPU, kept for the process."""
    return _fastest_on(torch.cuda.current_device(), alike(problem), direction)


@cache
def _fastest_on(device_index: int, problem: Problem, direction: str) -> LinearTile:
    target = current_target(problem.device)
    entry = linear_tile_for(problem, direction, target)
    if is_empty(problem):
        return entry

    def on(device: torch.device) -> LinearTile:
        calls = calls_of(problem, direction, target, device)
        tiles = candidates(problem, direction, target)
        said = partial(row, problem, direction, target, in_words(problem, device))
        return search(tiles, lambda tile: time_on_gpu(calls(tile)), said)

    return searched(on, entry)


def candidates(problem: Problem, direction: str, target: str) -> list[LinearTile]:
    """Return the target's entry, then those of other targets and all their neighbours.

    Which of them fit the shared memory only the compiler knows.
    """
    others = [name for name in linear_tile_table() if name.startswith("sm_")]
    entries = [linear_tile_for(problem, direction, name) for name in (target, *others)]
    return [tile for tile in with_neighbours(entries, STEPS) if tile.block <= tile.chunk_size]


def row(problem: Problem, direction: str, target: str, tried_on: str, found: Found[LinearTile]) -> str:
    """Return what was found as a row of the table."""
    p = problem
    width = padded_width(max(p.head_dim, p.head_dim_v))
    return table_row(f"{target}.{direction}", p.dtype, width, found.tile, found, tried_on)


def calls_of(
    problem: Problem, direction: str, target: str, device: torch.device
) -> Callable[[LinearTile], Callable[[], Any]]:
    """Return what makes of a tile a call of the pass on random tensors."""
    p, operators = problem, torch.ops.attnbench
    q, k, v, do = random_inputs(p, device)
    form = (p.query_starts, p.key_limits, isinstance(p.mask, Causal))

    def forward(tile: LinearTile) -> tuple[torch.Tensor, torch.Tensor]:
        states = operators.linear_states(k, v, p.seqlen_q, *form, tile)
        out, total = operators.linear_output(q, k, v, states, *form, tile, tile)
        return out, total

    if direction == "forward":
        return lambda tile: partial(forward, tile)
    kept = forward(linear_tile_for(p, "forward", target))
    return lambda tile: partial(linear_gradients, q, k, v, *kept, do, (*form, tile))
