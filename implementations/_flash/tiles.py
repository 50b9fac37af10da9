"""Tile sizes of the FlashAttention kernel. In: a problem. Out: block sizes, warps and pipeline stages.

The table (``tiles.toml``) is data: every entry was compiled ahead of time for its target and fits its
shared memory; those of 16 bits and widths up to 128 spill no register. Without a driver to ask, the answer is
a fixed entry.
"""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.contract.problem import Problem
from attnbench.implementations._shared.autotune import is_wanted

OPTIONS = ("block_q", "block_k", "num_warps", "num_stages", "tma")
SPLITS = "num_splits"
"""Another option: in how many splits decoding reads its keys."""
OLDEST = 80
"""Compute capability 8.0: the oldest with an entry; it stands in where there is no driver to ask."""
WIDEST_HEAD = 256
LARGEST_BLOCK, MOST_WARPS = 1024, 32
SMALLEST_BLOCK = 16
"""What a matmul of the kernel takes at least, along every axis."""


class Tile(NamedTuple):
    """``block_q`` queries × ``block_k`` keys a step, ``num_warps`` warps, ``num_stages`` loads in flight.

    ``tma``: 1 if the tensors inside the loop are fetched a tile at a time, by tensor descriptors (Hopper and
    data-centre Blackwell); where their strides don't allow it, by pointers all the same.
    """

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int
    tma: int = 0


def padded_width(width: int) -> int:
    """Return the power of two, at least 16, to which the kernel pads a head."""
    return max(SMALLEST_BLOCK, 1 << max(0, width - 1).bit_length())


@cache
def tile_table() -> Mapping[str, Any]:
    """Return the table: kernel → target → bits of an element → head width → the numbers of a tile."""
    return tomllib.loads(Path(__file__).with_name("tiles.toml").read_text(encoding="utf-8"))


@cache
def table_tile(kernel: str, target: str, dtype_bytes: int, width: int) -> Tile:
    """Return the entry of a kernel and target for the smallest listed width that holds ``width``."""
    widths = tile_table()[kernel][target][str(8 * dtype_bytes)]
    return Tile(*widths[str(min(int(listed) for listed in widths if int(listed) >= width))])


def shortened(tile: Tile, seqlen_q: int) -> Tile:
    """Return the shortest tile that holds the queries."""
    return tile._replace(block_q=min(tile.block_q, padded_width(seqlen_q)))


def table_target(capability: int) -> str:
    """Return the table's name for a compute capability (``89`` for 8.9): its own or the nearest older one."""
    return nearest_target(f"sm_{capability}", tile_table()["forward"])


def nearest_target(target: str, listed: Collection[str]) -> str:
    """Return which listed target stands in for this one (``sm_89``, ``gfx942``, ``cpu``): itself, the nearest
    older one, or the oldest.
    """
    if target in listed:
        return target
    digits = target.removeprefix("sm_")
    capability = int(digits) if digits.isdecimal() else OLDEST
    ours = [int(name.removeprefix("sm_")) for name in listed if name.startswith("sm_")]
    return f"sm_{max((found for found in ours if found <= capability), default=OLDEST)}"


def current_target(device: str) -> str:
    """Return the target of a problem's device: ``cpu``, or the current GPU's (the oldest if no driver)."""
    return "cpu" if device == "cpu" else f"sm_{current_capability() or OLDEST}"


def current_capability() -> int | None:
    """Ask for the current GPU's, without initialising CUDA in a process that has not done so itself."""
    import torch

    if torch.cuda.is_initialized():
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor
    return _capability_by_driver()


@cache
def _capability_by_driver() -> int | None:
    from attnbench.device.hardware import cuda_devices

    for device in cuda_devices()[:1]:
        if device.facts["compute_capability"]:
            return int(device.facts["compute_capability"].replace(".", ""))
    return None


def tile_for(problem: Problem, target: str | None = None, kernel: str = "forward") -> Tile:
    """Return the tile of a kernel (``forward``, ``dq``, ``dkdv``, ``decode``) for a problem on a target, by
    default on what is here (on the CPU, ``cpu``); the options named in ``OPTIONS`` override the table for
    every kernel.

    On a GPU a short query side takes the shortest tile that holds it, in ``decode`` everywhere that of a
    whole group of heads. On the CPU tiles are large: an interpreted step costs about the same whatever its
    size. Where a search is wanted (``autotune``), what is here takes the fastest tile that it found.
    """
    p = problem
    options = dict(p.options)
    given = {name: int(options[name]) for name in OPTIONS if options.get(name) is not None}
    if target is None:
        if not given and is_wanted(p.device):
            from .autotune import fastest_tile  # loads triton

            return fastest_tile(p, kernel)
        target = current_target(p.device)
    entry = nearest_target(target, tile_table()[kernel])
    tile = table_tile(kernel, entry, p.dtype_bytes, max(p.head_dim, p.head_dim_v))
    if kernel == "decode":
        tile = shortened(tile, p.group_size * p.seqlen_q)
    elif target != "cpu" and kernel != "dkdv":
        tile = shortened(tile, p.seqlen_q)
    return tile._replace(**given)


def kernel_faults(problem: Problem) -> list[str]:
    """Return what keeps the kernel from the problem: head width, GPU, tile options; empty if nothing."""
    faults = [
        f"{name}={width} is wider than the kernel's {WIDEST_HEAD}"
        for name, width in (("head_dim", problem.head_dim), ("head_dim_v", problem.head_dim_v))
        if width > WIDEST_HEAD
    ]
    capability = None if problem.device == "cpu" else current_capability()
    if capability is not None and capability < OLDEST:
        faults.append(f"compute capability {capability / 10} is older than {OLDEST / 10}")
    if not positions_fit(problem):
        faults.append("positions pass 2**31, which the kernel counts in 32 bits")
    options = dict(problem.options)
    for name in (*OPTIONS, SPLITS):
        value = options.get(name)
        if value is not None:
            faults.extend(_option_faults(name, value))
    return faults


def positions_fit(problem: Problem) -> bool:
    """Whether positions of queries and keys, and their differences, are numbers of 32 bits."""
    p = problem
    return max((0, *map(abs, p.query_starts))) + p.seqlen_q + p.seqlen_k < 2**31


def _option_faults(name: str, value: Any) -> Iterator[str]:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if name == "tma":
        if not is_integer or value not in (0, 1):
            yield f"tma must be 0 or 1, not {value!r}"
        return
    smallest = SMALLEST_BLOCK if name.startswith("block") else 1
    any_integer = name in ("num_stages", SPLITS)
    most = {SPLITS: tile_table()["splits"]["most"], "num_warps": MOST_WARPS}.get(name, LARGEST_BLOCK)
    if not is_integer or value < smallest or not (any_integer or value & (value - 1) == 0):
        kind = "an integer" if any_integer else "a power of two"
        yield f"{name} must be {kind} of at least {smallest}, not {value!r}"
    elif value > most:
        yield f"{name} must be at most {most}, not {value}"
