"""The search for tiles of the FlashAttention kernels. In: a problem, a kernel. Out: the fastest tile."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from attnbench.contract.problem import Problem
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
    shared_bytes_per_block,
    time_on_gpu,
)

from .decode import flash_decode
from .forward import operator_numbers
from .memory import least_shared_bytes
from .programs import is_empty
from .tiles import (
    SMALLEST_BLOCK,
    Tile,
    current_target,
    nearest_target,
    padded_width,
    table_tile,
    tile_for,
    tile_table,
)

STEPS: Steps = {
    "block_q": doubled_or_halved(SMALLEST_BLOCK, 256),
    "block_k": doubled_or_halved(SMALLEST_BLOCK, 256),
    "num_warps": doubled_or_halved(2, 16),
    "num_stages": one_more_or_less(5),
    "tma": lambda number: (1 - number,),
}
TMA_TARGETS = ("sm_90", "sm_100")
TMA_KERNELS = ("forward", "dq", "dkdv")


def fastest_tile(problem: Problem, kernel: str) -> Tile:
    """Return the fastest tile of a kernel for problems ``alike`` on the current GPU, kept for the process."""
    return _fastest_on(torch.cuda.current_device(), alike(problem), kernel)


@cache
def _fastest_on(device_index: int, problem: Problem, kernel: str) -> Tile:
    target = current_target(problem.device)
    entry = tile_for(problem, target, kernel)
    if is_empty(problem):
        return entry

    def on(device: torch.device) -> Tile:
        calls = calls_of(problem, kernel, target, device)
        tiles = candidates(problem, kernel, target, shared_bytes_per_block(device_index))
        said = partial(row, problem, kernel, target, in_words(problem, device))
        return search(tiles, lambda tile: time_on_gpu(calls(tile)), said)

    return searched(on, entry)


def candidates(problem: Problem, kernel: str, target: str, shared_bytes: int) -> list[Tile]:
    """Return the target's entry, then those of other targets and all their neighbours, as far as they fit."""
    p, listed = problem, [name for name in tile_table()[kernel] if name.startswith("sm_")]
    entries = [tile_for(p, name, kernel) for name in (target, *listed)]
    rows = p.group_size * p.seqlen_q if kernel == "decode" else p.seqlen_q
    longest = max(entries[0].block_q, padded_width(rows))
    tma = kernel in TMA_KERNELS and nearest_target(target, listed) in TMA_TARGETS
    widths = (p.head_dim, p.head_dim_v)
    first, *others = with_neighbours(entries, STEPS)
    fitting = (
        tile
        for tile in others
        if tile.block_q <= longest
        and (tma or not tile.tma)
        and least_shared_bytes(kernel, tile, widths, p.dtype_bytes) <= shared_bytes
    )
    return [first, *fitting]


def row(problem: Problem, kernel: str, target: str, tried_on: str, found: Found[Tile]) -> str:
    """Return what was found as a row of the table, where a tile cut to few queries stands uncut."""
    p, tile, listed = problem, found.tile, tile_table()[kernel]
    width = max(p.head_dim, p.head_dim_v)
    if tile.block_q == tile_for(p, target, kernel).block_q:
        whole = table_tile(kernel, nearest_target(target, listed), p.dtype_bytes, width)
        tile = tile._replace(block_q=whole.block_q)
    return table_row(f"{kernel}.{target}", str(8 * p.dtype_bytes), width, tile, found, tried_on)


def calls_of(
    problem: Problem, kernel: str, target: str, device: torch.device
) -> Callable[[Tile], Callable[[], Any]]:
    """Return what makes of a tile a call of the kernel on random tensors."""
    p, operators = problem, torch.ops.attnbench
    q, k, v, do = random_inputs(p, device)

    def tiled(tile: Tile) -> Problem:
        return p.replace(options=tile._asdict())

    if kernel == "decode":
        return lambda tile: partial(flash_decode, q, k, v, problem=tiled(tile))
    if kernel == "forward":
        return lambda tile: partial(
            operators.flash_forward, q, k, v, *operator_numbers(tiled(tile), p.needs_gradients)
        )
    numbers = operator_numbers(tiled(tile_for(p, target, "forward")), True)
    out, _, statistics = operators.flash_forward(q, k, v, *numbers)
    form, kept = numbers[:5], (do, None, out, statistics)
    if kernel == "dq":
        return lambda tile: partial(operators.flash_dq, q, k, v, *kept, *form, tile)
    _, delta = operators.flash_dq(q, k, v, *kept, *form, tile_for(p, target, "dq"))
    return lambda tile: partial(operators.flash_dkdv, q, k, v, do, statistics, delta, *form, tile)
