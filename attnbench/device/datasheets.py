"""What a GPU's maker says it can do, dense. In: `devices.toml`, a device's name. Out: its `Datasheet`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec


class Datasheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device; rates are peaks that nobody sustains, of dense matrices. None: no source says it."""

    key: str
    title: str
    names: tuple[str, ...]
    """What NVML and torch call the device."""
    memory_bytes_per_s: float
    matmul_flops_per_s: dict[str, float]
    """By `float32` (IEEE), `tf32`, `float16` and `bfloat16`, both accumulated in float32."""
    sources: tuple[str, ...]
    halved: tuple[str, ...] = ()
    """Rates that are half of the printed ones, which are for sparse matrices."""
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    """The last shared cache in front of the memory."""


@cache
def datasheets() -> Mapping[str, Datasheet]:
    """Return every device listed, by its key in `devices.toml`."""
    text = Path(__file__).with_name("devices.toml").read_text(encoding="utf-8")
    return {
        key: msgspec.convert({"key": key, **facts}, Datasheet) for key, facts in tomllib.loads(text).items()
    }


def find_datasheet(device_name: str) -> Datasheet | None:
    """Return the data sheet of the device that NVML or torch call ``device_name``, or None.

    The whole name must be equal: a MIG slice ("… MIG 1g.10gb") has only a part of its device, and variants
    of one name differ in memory and clocks.
    """
    wanted = _plain(device_name)
    for sheet in datasheets().values():
        if wanted in map(_plain, sheet.names):
            return sheet
    return None


def _plain(name: str) -> str:
    return " ".join(name.casefold().split())
