"""What this machine is made of: processor, caches, memory, GPUs, as the kernel and NVML tell it.

CUDA is never initialised.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnbench.contract.errors import UsageError, nearest
from attnbench.device import nvml
from attnbench.device.limits import (
    allowed_cores,
    container_memory_limit_bytes,
    cpu_quota_cores,
    total_memory_bytes,
    usable_cores,
)

_SYSTEM = Path("/sys/devices/system/cpu")
_SIZE_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
# With more threads than this, small cases mostly wait for each other.
_MOST_THREADS = 16


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor, as far as this process may use it; cache sizes in bytes."""

    model: str
    logical_cores: int
    physical_cores: int
    quota_cores: float | None
    l2_bytes: int | None
    l3_bytes: int | None
    memory_bytes: int | None
    memory_limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One NVIDIA GPU as NVML names it; `index` counts the visible ones, in PCI order."""

    index: int
    uuid: str
    name: str
    facts: dict[str, Any]


def cpu() -> Cpu:
    """The processor and memory of this machine."""
    caches = _cache_sizes()
    return Cpu(
        model=_cpu_model(),
        logical_cores=len(allowed_cores()),
        physical_cores=len(physical_cores()),
        quota_cores=cpu_quota_cores(),
        l2_bytes=caches.get(2),
        l3_bytes=caches.get(3),
        memory_bytes=total_memory_bytes(),
        memory_limit_bytes=container_memory_limit_bytes(),
    )


def physical_cores() -> list[int]:
    """One allowed logical core per physical one (the first of its siblings)."""
    chosen: dict[object, int] = {}
    for core in allowed_cores():
        topology = _SYSTEM / f"cpu{core}/topology"
        siblings = _text(topology / "thread_siblings_list")
        package = _text(topology / "physical_package_id")
        chosen.setdefault((package, siblings) if siblings else core, core)
    return sorted(chosen.values())


def last_level_cache_bytes() -> int | None:
    """All last-level caches that the allowed cores share among them; None where the system doesn't say."""
    found: dict[str, tuple[int, int]] = {}
    for core in allowed_cores():
        levels = [(level, size, shared) for level, size, shared in _caches(core) if size]
        if levels:
            level, size, shared = max(levels)
            found[shared] = (level, size)
    return sum(size for _, size in found.values()) or None


def default_threads() -> tuple[int, str]:
    """How many CPU threads a measurement uses unless told otherwise, and why.

    Beside another busy process, several threads on few cores measure the scheduler's time slice instead of
    the work; so one core is left to the system, and with two or fewer a measurement is single-threaded.
    """
    cores = min(usable_cores(), len(physical_cores()))
    if cores <= 2:
        return 1, f"{cores} usable core(s): one thread, so that another process can't stretch a sample"
    threads = min(cores - 1, _MOST_THREADS)
    return threads, f"{cores} usable physical cores: one left to the system, at most {_MOST_THREADS}"


def cuda_devices() -> list[CudaDevice]:
    """The NVIDIA GPUs this process may use, after `CUDA_VISIBLE_DEVICES`; empty without a driver."""
    visible = nvml.visible(nvml.gpu_uuids(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    facts = {uuid: nvml.gpu_facts(uuid) for uuid in visible}
    return [
        CudaDevice(index=index, uuid=uuid, name=facts[uuid].get("name") or "NVIDIA GPU", facts=facts[uuid])
        for index, uuid in enumerate(facts)
    ]


def require_device(device: str) -> CudaDevice | None:
    """Check that a device is there; returns the GPU, or None for the processor.

    Args:
        device: `cpu`, `cuda` (the first GPU) or `cuda:i`.

    Raises:
        UsageError: another name, or a GPU that is not there; the message says what there is.
    """
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if not match:
        hint = nearest(device, ["cpu", "cuda", "cuda:0"])
        raise UsageError(f"unknown device {device!r}{hint}: use cpu, cuda or cuda:i")
    if device == "cpu":
        return None
    found = cuda_devices()
    index = int(match[1] or 0)
    if index < len(found):
        return found[index]
    if found:
        there = ", ".join(f"cuda:{gpu.index} ({gpu.name})" for gpu in found)
    else:
        there = f"only cpu ({nvml.unavailable_reason() or 'no visible GPU'})"
    raise UsageError(f"no device {device!r} on this machine; there is {there}")


def describe() -> dict[str, Any]:
    """Processor and GPUs as plain data, for `run.json`."""
    return {"cpu": asdict(cpu()), "gpus": [asdict(gpu) for gpu in cuda_devices()]}


def _cpu_model() -> str:
    info = _text(Path("/proc/cpuinfo")) or ""
    match = re.search(r"^(?:model name|Processor|cpu model)\s*:\s*(.+)$", info, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _cache_sizes() -> dict[int, int]:
    """Bytes of the data or unified cache of each level, as the first allowed core sees it."""
    return {level: size for level, size, _ in _caches(allowed_cores()[0])}


def _caches(core: int) -> Iterator[tuple[int, int, str]]:
    """Level, bytes, and the cores that share it, of each data or unified cache of a core."""
    for folder in sorted((_SYSTEM / f"cpu{core}/cache").glob("index*")):
        level, kind, size = (_text(folder / name) for name in ("level", "type", "size"))
        match = re.fullmatch(r"(\d+)([KMG]?)", size or "")
        if level and match and kind != "Instruction":
            shared = _text(folder / "shared_cpu_list") or str(core)
            yield int(level), int(match[1]) * _SIZE_UNITS[match[2]], shared


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
