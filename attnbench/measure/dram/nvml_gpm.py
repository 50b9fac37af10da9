"""NVML's GPM (Hopper and later): an estimate for where the counters are locked. In: a job. Out: bytes.

It tells how busy the memory was, in both directions and in per cent of its peak, over a second of calls in a
row. It sees the whole GPU, and calls that find their inputs in the cache: a flush would count too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from attnbench.device import nvml
from attnbench.device.gpm import GpmError, dram_use, supports_gpm
from attnbench.device.hardware import cuda_devices
from attnbench.device.requirements import Finding, all_of, cuda_gpu

from .backend import ESTIMATE, BackendError, DramBytes

if TYPE_CHECKING:
    from .job import Job

NAME = "nvml-gpm"
LEAST_S = 1.0
CALLS_A_CHUNK = 10
"""Calls queued between two looks at the clock."""


def probe() -> Finding:
    """Say whether a GPU here offers GPM."""
    return all_of(cuda_gpu(""), _offered())


def measure(job: Job, timeout_s: float) -> DramBytes:
    """Estimate the bytes of the job's call.

    Raises:
        BackendError: the GPU has no GPM, the call can't be repeated by itself, or would be a warm one.
    """
    import torch

    if not job.repeatable:
        raise BackendError("what has to precede each call would count as well")
    properties = torch.cuda.get_device_properties(job.device)
    if job.cold and job.resident_bytes < 2 * properties.L2_cache_size:
        raise BackendError(
            f"calls in a row would find their {job.resident_bytes} bytes in the L2 cache: not a cold call"
        )
    uuid = f"GPU-{properties.uuid}"
    facts = nvml.gpu_facts(uuid)
    clock_mhz, bus_bits = facts.get("max_memory_clock_mhz"), facts.get("memory_bus_bits")
    if not clock_mhz or not bus_bits:
        raise BackendError("NVML tells neither the memory's clock nor its width", lasting=True)
    calls = 0

    def loop() -> None:
        nonlocal calls
        began = time.perf_counter()
        while calls == 0 or time.perf_counter() - began < LEAST_S:
            for _ in range(CALLS_A_CHUNK):
                job.call()
            calls += CALLS_A_CHUNK
            job.synchronize()

    job.warm_up()
    try:
        with job.environment():
            percent, seconds = dram_use(uuid, loop)
    except GpmError as error:
        raise BackendError(str(error), lasting=True) from None
    reading = Reading(percent, seconds, calls, clock_mhz, bus_bits)
    job.keep("nvml-gpm.json", msgspec.json.encode(reading._asdict()).decode())
    return DramBytes(total=reading.total_bytes(), note=ESTIMATE)


class Reading(NamedTuple):
    """What NVML said, and how often the job was called meanwhile."""

    percent: float
    seconds: float
    calls: int
    clock_mhz: float
    bus_bits: int

    def total_bytes(self) -> int:
        """Return the estimate of bytes a call.

        Raises:
            BackendError: the reading is no percentage.
        """
        peak = peak_bytes_per_s(self.clock_mhz, self.bus_bits)
        return estimate(self.percent, self.seconds, self.calls, peak)


def peak_bytes_per_s(clock_mhz: float, bus_bits: int) -> float:
    """Return the memory's peak bandwidth: two transfers a clock, ``2 · clock · width / 8``."""
    return 2 * clock_mhz * 1e6 * bus_bits / 8


def estimate(percent: float, seconds: float, calls: int, peak: float) -> int:
    """Return bytes a call: ``percent / 100 · peak · seconds / calls``, with ``peak`` in bytes a second.

    Raises:
        BackendError: the reading is no percentage.
    """
    if not 0 < percent <= 100:
        raise BackendError(f"GPM reads {percent:g} % of the bandwidth")
    return round(percent / 100 * peak * seconds / calls)


def _offered() -> Finding:
    able = [gpu.name for gpu in cuda_devices() if supports_gpm(gpu.uuid)]
    if able:
        return Finding(True, f"an estimate for {', '.join(able)}")
    return Finding(False, "no GPU here offers GPM metrics (Hopper and later do)")
