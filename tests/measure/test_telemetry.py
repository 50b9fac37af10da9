"""What the machine did meanwhile: read around a block, from the processor and from a GPU's own counters."""

import subprocess
import sys
import time

import pytest
import torch

from attnbench.device.activity import snapshot
from attnbench.device.nvml import GpuState
from attnbench.measure.telemetry import Observation, observe

CPU = torch.device("cpu")


def test_a_quiet_block_reports_its_own_time():
    with observe(CPU) as seen:
        until = time.perf_counter() + 0.05
        while time.perf_counter() < until:
            pass
    assert seen.activity.wall_s >= 0.05
    assert 0 < seen.activity.own_cpu_s <= seen.activity.wall_s * 1.5
    section = seen.section()
    assert section.context_switches is not None
    assert section.context_switches >= 0
    assert section.sm_clock_mhz is None
    assert section.throttle_reasons is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="foreign CPU time is read from /proc")
def test_another_process_at_work_is_seen():
    busy = "import time; end = time.perf_counter() + 0.4\nwhile time.perf_counter() < end: pass"
    with observe(CPU) as seen:
        subprocess.run([sys.executable, "-S", "-c", busy], check=True)
    assert seen.section().foreign_cpu_s is not None
    assert seen.section().foreign_cpu_s > 0.1


def test_an_interrupted_block_is_still_read():
    with pytest.raises(RuntimeError, match="stop"), observe(CPU) as seen:
        raise RuntimeError("stop")
    assert seen.activity.wall_s >= 0


def gpu(**changes) -> GpuState:
    idle = {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "power_w": 500.0,
        "temperature_c": 60,
        "energy_j": 1000.0,
        "throttled_ns": {"power_cap": 5, "hardware_thermal": 0},
        "other_processes": 0,
        "used_bytes": 1,
        "total_bytes": 2,
    }
    return GpuState(**{**idle, **changes})


def test_a_gpu_is_reported_by_its_state_and_the_growth_of_its_counters():
    after = gpu(sm_clock_mhz=1500, throttled_ns={"power_cap": 9, "hardware_thermal": 0}, other_processes=1)
    seen = Observation(snapshot(), gpu(), gpu_after=after)
    seen.after = snapshot()
    section = seen.section()
    assert seen.throttle_reasons == section.throttle_reasons == ["power_cap"]
    assert section.sm_clock_mhz == 1500
    assert section.memory_clock_mhz == 2619
    assert section.other_processes == 1
