"""What a multiprocessor holds, and how many blocks of a kernel fit. In: `targets.toml`, and for caches
`devices.toml`. Out: `Target`s.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.contract.errors import UsageError, nearest

from .datasheets import datasheets

SCHEDULERS = 4
"""Parts of a multiprocessor with registers of their own, on every target listed."""


class Residency(NamedTuple):
    """Blocks of a kernel that one multiprocessor holds at a time, and what keeps it from more."""

    blocks_per_sm: int
    limited_by: str


@dataclass(frozen=True, kw_only=True)
class L2Cache:
    """The cache that all multiprocessors of one device share."""

    device: str
    multiprocessors: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """One architecture; per multiprocessor unless it says otherwise."""

    name: str
    devices: str
    registers: int
    register_unit: int
    """Registers are given to a warp in multiples of this."""
    warps: int
    blocks: int
    shared_bytes: int
    shared_bytes_per_block: int
    shared_bytes_reserved: int = 1024
    """Shared memory that a block has besides its own."""
    tensor_memory_columns: int = 0
    warp_size: int = 32
    l2: L2Cache | None = None
    """None where it is not one cache."""

    @property
    def backend(self) -> str:
        """Triton's name of the compiler: ``cuda`` or ``hip``."""
        return "cuda" if self.name.startswith("sm_") else "hip"

    @property
    def arch(self) -> int | str:
        """Triton's name of the architecture: ``90`` or ``gfx942``."""
        return int(self.name.removeprefix("sm_")) if self.backend == "cuda" else self.name

    def residency(self, *, warps: int, registers: int, shared_bytes: int, columns: int = 0) -> Residency:
        """Return how many blocks are resident, given what one takes; 0 if it does not fit at all.

        Args:
            warps: warps of a block.
            registers: registers of a thread.
            shared_bytes: shared memory of a block.
            columns: tensor memory of a block, in columns.
        """
        by_warp = -(-registers * self.warp_size // self.register_unit) * self.register_unit
        warps_with_registers = self.registers // SCHEDULERS // max(1, by_warp) * SCHEDULERS
        fitting = shared_bytes <= self.shared_bytes_per_block
        shared = self.shared_bytes // max(1, shared_bytes + self.shared_bytes_reserved) if fitting else 0
        limits = {
            "registers": warps_with_registers // warps,
            "shared memory": shared,
            "warps": self.warps // warps,
            "blocks": self.blocks,
        }
        if columns:
            limits["tensor memory"] = self.tensor_memory_columns // columns
        name = min(limits, key=limits.__getitem__)
        return Residency(limits[name], name)


@cache
def targets() -> Mapping[str, Target]:
    """Return every target listed, by name."""
    text = Path(__file__).with_name("targets.toml").read_text(encoding="utf-8")
    return {name: _target(name, **facts) for name, facts in tomllib.loads(text).items()}


def _target(name: str, l2_of: str | None = None, **facts: Any) -> Target:
    return Target(name=name, l2=None if l2_of is None else _l2_cache(l2_of), **facts)


def _l2_cache(key: str) -> L2Cache:
    sheet = datasheets()[key]
    if sheet.l2_bytes is None or sheet.multiprocessors is None:
        raise ValueError(f"the data sheet {key!r} has no cache or no multiprocessors")
    return L2Cache(device=sheet.title, multiprocessors=sheet.multiprocessors, bytes=sheet.l2_bytes)


def find_target(name: str) -> Target:
    """Return the target of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in targets():
        known = ", ".join(targets())
        raise UsageError(f"unknown target {name!r}{nearest(name, targets())}; there are {known}")
    return targets()[name]
