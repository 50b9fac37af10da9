"""NVML with a GPU where there is none: constants and errors of the real `pynvml`, readings made by hand."""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml

UUID = "GPU-00000000-1111-2222-3333-444444444444"


@dataclass
class Card:
    """What one GPU tells; a field that is None is not supported by it."""

    sm_clock_mhz: int | None = 1980
    memory_clock_mhz: int | None = 3201
    power_mw: int | None = 500_000
    temperature_c: int | None = 60
    energy_mj: int | None = 1_000_000
    throttled_ns: dict[str, int] = field(default_factory=lambda: {"SW_POWER_CAP": 0, "HW_THERM_SLOWDOWN": 0})
    processes: list[tuple[int, int | None]] | None = field(default_factory=list)
    """Process ids, and the bytes that each holds."""
    total_bytes: int = 139 << 30
    used_bytes: int = 1 << 30


class FakeNvml(ModuleType):
    """Stands for the module `pynvml`, with one card."""

    def __init__(self, card: Card) -> None:
        super().__init__("pynvml")
        self.card = card
        self.open = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            raise AttributeError(f"the fake has no {name}")
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert self.open > 0
        if uuid != UUID:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        clocks = {
            pynvml.NVML_CLOCK_SM: self.card.sm_clock_mhz,
            pynvml.NVML_CLOCK_MEM: self.card.memory_clock_mhz,
        }
        return supported(clocks[clock])

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return supported(self.card.temperature_c)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return supported(self.card.energy_mj)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=self.card.total_bytes, used=self.card.used_bytes)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in supported(self.card.processes)]

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[SimpleNamespace]:
        known: dict[int, int | None] = {pynvml.NVML_FI_DEV_POWER_INSTANT: self.card.power_mw}
        for name, duration_ns in self.card.throttled_ns.items():
            known[getattr(pynvml, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}")] = duration_ns
        (number,) = fields
        if known.get(number) is None:
            return [SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED)]
        value = SimpleNamespace(ullVal=known[number])
        kind = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        return [SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, valueType=kind, value=value)]


def supported(reading: Any) -> Any:
    """The reading, or the error with which NVML says that there is none."""
    if reading is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return reading


def install(monkeypatch: Any, card: Card) -> FakeNvml:
    """Let everything in this process find the card."""
    fake = FakeNvml(card)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake
