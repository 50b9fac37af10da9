"""Devices of cases. In: ``auto``, ``cpu``, ``cuda``, ``cuda:i``. Out: a case's kind, the run's index."""

import re
from collections.abc import Collection
from typing import Literal

from attnbench.contract.errors import UsageError, nearest
from attnbench.device.hardware import cuda_devices, require_device


def device_kind(device: str, *, must_exist: bool = True) -> Literal["cpu", "cuda"]:
    """Return ``cpu`` or ``cuda``; ``auto`` is cuda if this machine has one.

    Raises:
        UsageError: another name, or, if it must exist, a GPU that is not there.
    """
    if device == "auto":
        return "cuda" if cuda_devices() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        close = nearest(device, ["auto", "cpu", "cuda"])
        raise UsageError(f"unknown device {device!r}{close}; use auto, cpu, cuda or cuda:i")
    if must_exist:
        require_device(device)
    return "cpu" if device == "cpu" else "cuda"


def device_kinds(devices: Collection[str], *, must_exist: bool = True) -> list[str]:
    """Return the kinds of a suite's devices, each once.

    Raises:
        UsageError: as `device_kind`, or one of several GPUs is named: that belongs to the run.
    """
    for device in devices:
        if ":" in device:
            raise UsageError(
                f"device {device!r}: a suite says cuda; `--device {device}` chooses one of several"
            )
    return list(dict.fromkeys(device_kind(device, must_exist=must_exist) for device in devices))


def device_index(device: str | None) -> int | None:
    """Return the ``i`` of ``cuda:i``, or None where none was given."""
    _, _, index = (device or "").partition(":")
    return int(index) if index else None
