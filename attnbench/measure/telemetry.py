"""What the machine did during a measurement. In: a device. Out: the section, and what verdicts need of it.

A GPU is read when it has warmed up and again after the last sample: between lie samples and nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from attnbench.device.activity import Activity, Snapshot, difference, snapshot
from attnbench.device.nvml import GpuState, gpu_state, throttle_reasons, unavailable_reason

from .record import Telemetry

OF_A_GPU = (
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_w",
    "temperature_c",
    "throttle_reasons",
    "other_processes",
)
MEAN_POWER_S = 0.2
"""The energy counter moves in steps of up to a tenth of a second: over less its growth says little."""


@dataclass
class Observation:
    """Readings before and after; complete once the ``observe`` block has ended."""

    before: Snapshot
    gpu_before: GpuState | None
    after: Snapshot = field(init=False)
    gpu_after: GpuState | None = None
    uuid: str | None = None

    def settled(self) -> None:
        """Begin with the GPU as it is now: warmed up, its clock no longer that of an idle card."""
        if self.uuid is not None:
            self.gpu_before = gpu_state(self.uuid)

    @property
    def activity(self) -> Activity:
        """What the processor did in between."""
        return difference(self.before, self.after)

    @property
    def throttle_reasons(self) -> list[str]:
        """What slowed the GPU in between."""
        return throttle_reasons(self.gpu_before, self.gpu_after)

    @property
    def clock_drift(self) -> float | None:
        """The change of the SM clock in between over its first value; None where it can't be read."""
        states = (self.gpu_before, self.gpu_after)
        start, end = (None if state is None else state.sm_clock_mhz for state in states)
        return None if not start or end is None else end / start - 1

    @property
    def other_processes(self) -> int:
        """How many other processes held the GPU, at the end that saw more of them."""
        states = (self.gpu_before, self.gpu_after)
        return max((state.other_processes or 0 for state in states if state is not None), default=0)

    def section(self) -> Telemetry:
        """Return the section.

        Clocks and temperature are those at the end, power is the mean of the samples' time, the gaps between
        them included, or the reading at the end where that can't be told.
        """
        activity = self.activity
        section = Telemetry(
            context_switches=activity.involuntary_switches + activity.voluntary_switches,
            foreign_cpu_s=activity.foreign_cpu_s,
        )
        if self.gpu_before is None or self.gpu_after is None:
            return section
        end = self.gpu_after
        section.sm_clock_start_mhz, section.sm_clock_mhz = self.gpu_before.sm_clock_mhz, end.sm_clock_mhz
        section.memory_clock_mhz = end.memory_clock_mhz
        section.power_w = mean_power_w(self.gpu_before, end) or end.power_w
        section.temperature_c = end.temperature_c
        section.throttle_reasons = self.throttle_reasons if end.throttled_ns else None
        told = [state.other_processes for state in (self.gpu_before, end)]
        section.other_processes = None if told == [None, None] else self.other_processes
        return section


def why_lacking(section: Telemetry, device: torch.device) -> dict[str, str]:
    """Return why readings of a GPU are missing, by their names in ``unavailable``."""
    missing = [f"telemetry.{name}" for name in OF_A_GPU if getattr(section, name) is None]
    if device.type != "cuda":
        return dict.fromkeys(missing, "read from a GPU; this case ran on the CPU")
    return dict.fromkeys(missing, unavailable_reason() or "this GPU does not tell it")


def mean_power_w(before: GpuState, after: GpuState) -> float | None:
    """Return the growth of the energy counter over the time; None without one, or if it hardly had time."""
    elapsed_s = after.read_s - before.read_s
    if before.energy_j is None or after.energy_j is None or elapsed_s < MEAN_POWER_S:
        return None
    return (after.energy_j - before.energy_j) / elapsed_s


@contextmanager
def observe(device: torch.device) -> Iterator[Observation]:
    """Read the counters before and after the block."""
    uuid = uuid_of(device) if device.type == "cuda" else None
    seen = Observation(snapshot(), None if uuid is None else gpu_state(uuid), uuid=uuid)
    try:
        yield seen
    finally:
        seen.after = snapshot()
        seen.gpu_after = None if uuid is None else gpu_state(uuid)


def uuid_of(device: torch.device) -> str:
    """Return the name by which NVML knows a CUDA device."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
