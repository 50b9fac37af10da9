"""Tile sizes of the FlashAttention kernel. In: a problem and the device it runs on. Out: block sizes, warps and pipeline stages.

The table (``_flash_tiles.toml``) is data: every entry was compiled ahead of time for its target, fits its shared memory and spills no
register. Without a driver to ask, the answer is a fixed entry, so that costs and predictions do not depend on the machine.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.contract.problem import Problem

OPTIONS = ("block_q", "block_k", "num_warps", "num_stages")
WITHOUT_DRIVER = "sm_80"
SMALLEST_BLOCK = 16
"""What ``tl.dot`` takes at least, along every axis."""


class Tile(NamedTuple):
    """``block_q`` queries × ``block_k`` keys a step, by ``num_warps`` warps with ``num_stages`` loads in flight."""

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int


def padded_width(width: int) -> int:
    """Return the power of two, at least 16, to which the kernel pads a head."""
    return max(SMALLEST_BLOCK, 1 << max(0, width - 1).bit_length())


@cache
def tile_table() -> Mapping[str, Any]:
    """Return the table: target → ``16`` or ``32`` (bits) → padded width → ``[block_q, block_k, num_warps, num_stages]``."""
    return tomllib.loads(Path(__file__).with_name("_flash_tiles.toml").read_text(encoding="utf-8"))


def _entry(target: str, dtype_bytes: int, width: int) -> Tile:
    widths = tile_table()[target][str(8 * dtype_bytes)]
    fitting = min(int(name) for name in widths if int(name) >= width)
    return Tile(*widths[str(fitting)])


@cache
def _cuda_target() -> str:
    """Return the table's entry for the current GPU: its own, else the newest one that is older in the same generation's line."""
    import torch

    if not torch.cuda.is_available():
        return WITHOUT_DRIVER
    major, minor = torch.cuda.get_device_capability()
    targets = [int(name.removeprefix("sm_")) for name in tile_table() if name.startswith("sm_")]
    known = [target for target in targets if target <= 10 * major + minor]
    return f"sm_{max(known)}" if known else f"sm_{min(targets)}"


def tile_for(problem: Problem) -> Tile:
    """Return the tile for a problem; the options ``block_q, block_k, num_warps, num_stages`` override the table.

    On a GPU a short query side (decoding) takes the shortest tile that holds it. On the CPU tiles are large: an interpreted step costs
    the same whatever its size.
    """
    p = problem
    target = "cpu" if p.device == "cpu" else _cuda_target()
    tile = _entry(target, p.dtype_bytes, padded_width(max(p.head_dim, p.head_dim_v)))
    if target != "cpu":
        tile = tile._replace(block_q=min(tile.block_q, padded_width(p.seqlen_q)))
    given = {name: int(p.option(name)) for name in OPTIONS if p.option(name) is not None}
    return tile._replace(**given)


def tile_faults(problem: Problem) -> list[str]:
    """Return what is wrong with the tile options; empty if nothing."""
    faults = []
    for name, smallest in zip(OPTIONS, (SMALLEST_BLOCK, SMALLEST_BLOCK, 1, 1), strict=True):
        value = problem.option(name)
        if value is None:
            continue
        power_of_two = isinstance(value, int) and value > 0 and value & (value - 1) == 0
        if not isinstance(value, int) or value < smallest or not (power_of_two or name == "num_stages"):
            kind = "an integer" if name == "num_stages" else "a power of two"
            faults.append(f"{name} must be {kind} of at least {smallest}, not {value!r}")
    return faults
