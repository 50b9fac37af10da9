"""Latency of one call, in one launch. In: a workload and settings. Out: the section with every sample, the
telemetry, and what the last timed call returned.
"""

import dataclasses
from collections.abc import Callable

import torch

from attnbench.device.limits import usable_cores
from attnbench.plan.settings import MeasureSettings

from .cpu_timer import CpuTimer
from .cuda_timer import CudaStream, CudaTimer
from .launches import latency_of
from .record import Latency, Telemetry
from .stopping import StoppingRule
from .telemetry import observe
from .timing import Task, Timer, Timing
from .verdicts import judge
from .workload import Outputs, Workload


def timer_for(workload: Workload) -> Timer:
    """Return the timer of the workload's device."""
    if workload.device.type == "cuda":
        return CudaTimer(CudaStream(workload.device), workload.case.cache)
    return CpuTimer()


def measure_latency(
    workload: Workload,
    settings: MeasureSettings,
    *,
    timer: Timer | None = None,
    plausible_floor_ms: float | None = None,
) -> tuple[Latency, Telemetry]:
    """Time the workload's call until its median is known to 1 %, or a launch's part of the budget ends.

    ``plausible_floor_ms`` is the time that the hardware's peak would need; a faster median is called
    ``implausible``.
    """
    timer = timer or timer_for(workload)
    rule = StoppingRule.of_launch(settings)
    task = Task(call=workload.call, prepare=workload.prepare, repeatable=workload.repeatable)
    with workload.environment(), observe(workload.device) as seen:
        timing = timer.time(task, rule, settings.warmup_s)
    verdict = judge(
        timing.samples_ms,
        seen.activity,
        threads=torch.get_num_threads(),
        cores=usable_cores(),
        below_resolution=timing.below_resolution,
        throttle_reasons=seen.throttle_reasons,
        plausible_floor_ms=plausible_floor_ms,
    )
    return summarize(timing, timer, verdict), seen.section()


def time_and_keep(
    workload: Workload,
    settings: MeasureSettings,
    measure: Callable[[Workload, MeasureSettings], tuple[Latency, Telemetry]] = measure_latency,
) -> tuple[Latency, Telemetry, torch.Tensor]:
    """Time the workload's call; return also the output of the last one, which may have become another."""
    last: list[torch.Tensor] = []

    def keeping() -> Outputs:
        outputs = workload.call()
        last[:] = [outputs.out]
        return outputs

    latency, telemetry = measure(dataclasses.replace(workload, call=keeping), settings)
    return latency, telemetry, last[0]


def summarize(timing: Timing, timer: Timer, verdict: list[str]) -> Latency:
    """Return the section; without samples there are no numbers in it, only the verdict."""
    return latency_of([timing.samples_ms], timer=timer.name, cache=timer.cache, verdict=verdict)
