"""What the machine did during a measurement. In: a device. Out: the section, and what verdicts need of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from attnbench.device.activity import Activity, Snapshot, difference, snapshot
from attnbench.device.nvml import GpuState, gpu_state, throttle_reasons

from .record import Telemetry


@dataclass
class Observation:
    """Readings before and after; complete once the ``observe`` block has ended."""

    before: Snapshot
    gpu_before: GpuState | None
    after: Snapshot = field(init=False)
    gpu_after: GpuState | None = None

    @property
    def activity(self) -> Activity:
        """What the processor did in between."""
        return difference(self.before, self.after)

    @property
    def throttle_reasons(self) -> list[str]:
        """What slowed the GPU in between."""
        return throttle_reasons(self.gpu_before, self.gpu_after)

    def section(self) -> Telemetry:
        """Return the section; clocks, power and temperature are those at the end."""
        activity = self.activity
        section = Telemetry(
            context_switches=activity.involuntary_switches + activity.voluntary_switches,
            foreign_cpu_s=activity.foreign_cpu_s,
        )
        if self.gpu_before is None or self.gpu_after is None:
            return section
        end = self.gpu_after
        section.sm_clock_mhz, section.memory_clock_mhz = end.sm_clock_mhz, end.memory_clock_mhz
        section.power_w, section.temperature_c = end.power_w, end.temperature_c
        section.throttle_reasons = self.throttle_reasons
        section.other_processes = end.other_processes
        return section


@contextmanager
def observe(device: torch.device) -> Iterator[Observation]:
    """Read the counters before and after the block."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None
    seen = Observation(snapshot(), None if uuid is None else gpu_state(uuid))
    try:
        yield seen
    finally:
        seen.after = snapshot()
        seen.gpu_after = None if uuid is None else gpu_state(uuid)
