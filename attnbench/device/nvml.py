"""NVIDIA's management library: which GPUs there are and what they are doing, without initialising CUDA.

GPUs are named by UUID, never by index, because `CUDA_VISIBLE_DEVICES` renumbers them. Without a driver
everything is empty or None; a single reading that a GPU doesn't support is None and costs nothing else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")
# Our names of NVML's cumulative throttle counters.
_THROTTLE_FIELDS = {
    "power_cap": "SW_POWER_CAP",
    "software_thermal": "SW_THERM_SLOWDOWN",
    "hardware_thermal": "HW_THERM_SLOWDOWN",
    "power_brake": "HW_POWER_BRAKE_SLOWDOWN",
}


@dataclass(frozen=True, slots=True)
class GpuState:
    """Readings of one GPU at `read_s`; of `energy_j` and `throttled_ns` only the growth means something."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    energy_j: float | None
    throttled_ns: dict[str, int]
    other_processes: int | None
    used_bytes: int | None
    total_bytes: int | None
    read_s: float = field(default_factory=time.perf_counter)


def unavailable_reason() -> str | None:
    """Why NVML can't be used here, or None when it can."""
    try:
        with library():
            return None
    except Unavailable as reason:
        return str(reason)


def gpu_uuids() -> list[str]:
    """UUIDs of all GPUs of this machine in PCI order; empty without a driver."""
    return _with_library(lambda nv: [nv.nvmlDeviceGetUUID(handle) for handle in _handles(nv)]) or []


def visible(uuids: list[str], setting: str | None) -> list[str]:
    """The GPUs that a value of `CUDA_VISIBLE_DEVICES` leaves, in its order.

    An entry is an index, the beginning of a UUID, or a MIG instance, which NVML knows by that name; as in
    CUDA, an entry that names no GPU ends the list.
    """
    if setting is None:
        return uuids
    chosen: list[str] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdigit():
            named = uuids[int(entry) : int(entry) + 1]
        elif entry.startswith("MIG-"):
            named = [entry]
        else:
            named = [uuid for uuid in uuids if entry and uuid.startswith(entry)]
        if len(named) != 1:
            break
        chosen += named
    return chosen


def gpu_facts(uuid: str) -> dict[str, Any]:
    """What doesn't change about a GPU: name, memory, bus, limits, driver; None for what it doesn't tell."""

    def read(nv: Any) -> dict[str, Any]:
        handle = nv.nvmlDeviceGetHandleByUUID(uuid)
        capability = _try(lambda: nv.nvmlDeviceGetCudaComputeCapability(handle))
        return {
            "name": _try(lambda: nv.nvmlDeviceGetName(handle)),
            "compute_capability": None if capability is None else "{}.{}".format(*capability),
            "memory_bytes": _try(lambda: int(nv.nvmlDeviceGetMemoryInfo(handle).total)),
            "memory_bus_bits": _try(lambda: int(nv.nvmlDeviceGetMemoryBusWidth(handle))),
            "max_memory_clock_mhz": _try(lambda: _max_clock_mhz(nv, handle, nv.NVML_CLOCK_MEM)),
            "max_sm_clock_mhz": _try(lambda: _max_clock_mhz(nv, handle, nv.NVML_CLOCK_SM)),
            "power_limit_w": _try(lambda: nv.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            "ecc": _try(lambda: bool(nv.nvmlDeviceGetEccMode(handle)[0])),
            "mig": _try(lambda: bool(nv.nvmlDeviceGetMigMode(handle)[0])),
            "driver": _try(lambda: nv.nvmlSystemGetDriverVersion()),
        }

    return _with_library(read) or {}


def gpu_state(uuid: str) -> GpuState | None:
    """What a GPU is doing now, or None without a driver or without that GPU."""

    def read(nv: Any) -> GpuState:
        handle = nv.nvmlDeviceGetHandleByUUID(uuid)
        memory = _try(lambda: nv.nvmlDeviceGetMemoryInfo(handle))
        processes = _try(lambda: nv.nvmlDeviceGetComputeRunningProcesses(handle))
        return GpuState(
            sm_clock_mhz=_try(lambda: int(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM))),
            memory_clock_mhz=_try(lambda: int(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_MEM))),
            power_w=_try(lambda: _field(nv, handle, "NVML_FI_DEV_POWER_INSTANT") / 1000),
            temperature_c=_try(lambda: int(nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU))),
            energy_j=_try(lambda: nv.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000),
            throttled_ns=_throttled_ns(nv, handle),
            other_processes=None if processes is None else max(0, len(processes) - _own_contexts()),
            used_bytes=None if memory is None else int(memory.used),
            total_bytes=None if memory is None else int(memory.total),
        )

    return _with_library(read)


def throttle_reasons(before: GpuState | None, after: GpuState | None) -> list[str]:
    """Names of the limits that slowed the GPU between two states, by the growth of its own counters."""
    if before is None or after is None:
        return []
    return [name for name, end in after.throttled_ns.items() if end > before.throttled_ns.get(name, end)]


def energy_j(uuid: str) -> float | None:
    """Joules that the whole board has used since the driver started; None before Volta and in a MIG part."""
    return _with_library(
        lambda nv: nv.nvmlDeviceGetTotalEnergyConsumption(nv.nvmlDeviceGetHandleByUUID(uuid)) / 1000
    )


def process_bytes(uuid: str, pid: int) -> int | str:
    """Memory of the GPU that one process holds, contexts and libraries included, or why it can't be told."""

    def read(nv: Any) -> int | str:
        processes = nv.nvmlDeviceGetComputeRunningProcesses(nv.nvmlDeviceGetHandleByUUID(uuid))
        found = [process.usedGpuMemory for process in processes if process.pid == pid]
        if not found:
            return "NVML does not list this process by its id here, as in a container with ids of its own"
        return "the driver does not tell the memory of a process" if found[0] is None else int(found[0])

    if (reason := unavailable_reason()) is not None:
        return reason
    told = _with_library(read)
    return "NVML does not list the processes of this GPU" if told is None else told


class Unavailable(Exception):
    """NVML can't be loaded or started."""


@contextmanager
def library() -> Iterator[Any]:
    """NVML, started, for as long as the block runs.

    Raises:
        Unavailable: it is not installed, or there is no driver.
    """
    try:
        import pynvml
    except ImportError:
        raise Unavailable("nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Unavailable(f"no NVIDIA driver: {error}") from None
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _with_library(read: Callable[[Any], _T]) -> _T | None:
    try:
        with library() as nv:
            return _try(lambda: read(nv))
    except Unavailable:
        return None


def _handles(nv: Any) -> list[Any]:
    return [nv.nvmlDeviceGetHandleByIndex(index) for index in range(nv.nvmlDeviceGetCount())]


def _max_clock_mhz(nv: Any, handle: Any, clock: int) -> int:
    return int(nv.nvmlDeviceGetMaxClockInfo(handle, clock))


def _throttled_ns(nv: Any, handle: Any) -> dict[str, int]:
    """How long each limit has slowed the GPU since the driver started, without those it doesn't count."""

    def read(field: str) -> int:
        return int(_field(nv, handle, "NVML_FI_DEV_CLOCKS_EVENT_REASON_" + field))

    times = {name: _try(partial(read, field)) for name, field in _THROTTLE_FIELDS.items()}
    return {name: time for name, time in times.items() if time is not None}


def _own_contexts() -> int:
    """1 if this process uses CUDA. Process ids don't say it: in a container NVML reports the host's."""
    torch = sys.modules.get("torch")
    return int(torch is not None and torch.cuda.is_initialized())


def _field(nv: Any, handle: Any, name: str) -> float:
    value = nv.nvmlDeviceGetFieldValues(handle, [getattr(nv, name)])[0]
    if value.nvmlReturn != nv.NVML_SUCCESS:
        raise nv.NVMLError(value.nvmlReturn)
    kinds = {
        nv.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nv.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nv.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nv.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nv.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    return float(getattr(value.value, kinds[value.valueType]))


def _try(read: Callable[[], _T]) -> _T | None:
    """The reading, or None where this GPU or this driver doesn't offer it, or gives a text in no encoding."""
    import pynvml

    try:
        return read()
    except (pynvml.NVMLError, AttributeError, KeyError, UnicodeDecodeError):
        return None
