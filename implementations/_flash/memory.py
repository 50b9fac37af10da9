"""Shared memory that a block of the FlashAttention kernels takes. In: a tile, widths. Out: bytes, at least.

Exact bytes come from the compiler, which adds room to change layouts; what is left out here is that room, so
that no tile which fits is ever refused.
"""

from collections.abc import Iterator

from attnbench.contract.problem import Problem
from attnbench.device.targets import Target, targets
from attnbench.implementations._shared.constant import constant

from .programs import is_empty, kernels_of
from .splits import decodes
from .tiles import Tile, current_capability, padded_width, tile_for


def least_shared_bytes(kernel: str, tile: Tile, widths: tuple[int, int], dtype_bytes: int) -> int:
    """Return the bytes of the tiles that a block holds: those it keeps, and those that are under way.

    ``forward`` and ``decode`` keep q, ``dq`` keeps q and do, and of k and v ``num_stages - 1`` tiles are
    under way; ``dkdv`` keeps k and v, in float32 in registers, and q and do come.

    Args:
        kernel: its name in the table.
        tile: what it is launched with.
        widths: of q and k, and of v, as they are.
        dtype_bytes: of an element.
    """
    width, value_width = (padded_width(each) for each in widths)
    queries, keys = tile.block_q * width, tile.block_k * (width + value_width)
    if kernel in ("dq", "dkdv"):
        queries += tile.block_q * value_width
    kept, coming = (keys, queries) if kernel == "dkdv" else (queries, keys)
    if kernel == "dkdv" and dtype_bytes == 4:
        kept = 0
    return dtype_bytes * (kept + (tile.num_stages - 1) * coming)


def memory_faults(problem: Problem) -> list[str]:
    """Return which kernels of the problem ask for more shared memory than the GPU here gives a block."""
    return list(_memory_faults(problem))


@constant
def _memory_faults(problem: Problem) -> tuple[str, ...]:
    p = problem
    capability = None if p.device == "cpu" or is_empty(p) else current_capability()
    target = targets().get(f"sm_{capability}")
    return () if target is None else tuple(_faults_on(target, p))


def _faults_on(target: Target, p: Problem) -> Iterator[str]:
    for kernel in ("decode",) if decodes(p) else kernels_of(p):
        tile = tile_for(p, target.name, kernel)
        needed = least_shared_bytes(kernel, tile, (p.head_dim, p.head_dim_v), p.dtype_bytes)
        if needed > target.shared_bytes_per_block:
            yield (
                f"a block of the {kernel} kernel takes at least {needed} bytes of shared memory with "
                f"{tile.block_q} × {tile.block_k} in {tile.num_stages} stages; "
                f"{target.name} has {target.shared_bytes_per_block}"
            )
