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
from .cupti_timer import CuptiTimer
from .graph_timer import CudaGraphs, GraphTimer
from .ladder import Ladder
from .launches import latency_of
from .record import Latency, Telemetry
from .stopping import StoppingRule
from .telemetry import observe
from .timing import Task, Timer, Timing
from .verdicts import judge
from .workload import Outputs, Workload


def timer_for(workload: Workload, first: str | None = None, only: str | None = None) -> Timer:
    """Return the timer of the workload's device: on a GPU the best one that works for the call, or ``first``
    if that one does. With ``only`` it is the one of that name, whether it works or not.
    """
    if workload.device.type != "cuda":
        return CpuTimer()
    stream, cache = CudaStream(workload.device), workload.case.cache
    graph = GraphTimer(stream, cache, graphs=CudaGraphs(workload.device))
    rungs: tuple[Timer, Timer, Timer] = (CuptiTimer(stream, cache), graph, CudaTimer(stream, cache))
    if only is not None:
        return next(timer for timer in rungs if timer.name == only)
    return Ladder(*rungs, first)


def measure_latency(
    workload: Workload,
    settings: MeasureSettings,
    *,
    unavailable: dict[str, str],
    timer: Timer | None = None,
    plausible_floor_ms: float | None = None,
) -> tuple[Latency, Telemetry]:
    """Time the workload's call until its median is known to 1 %, or a launch's part of the budget ends.

    ``plausible_floor_ms`` is the time that the hardware's peak would need; a faster median is called
    ``implausible``. Why a better timer was not used goes to ``unavailable``, under that timer's name.

    Raises:
        UnusableTimerError: the settings name the only timer, and it can't time this call here.
    """
    timer = timer or timer_for(workload, only=settings.timer)
    rule = StoppingRule.of_launch(settings)
    with workload.environment(), observe(workload.device) as seen:
        task = Task(
            call=workload.call,
            prepare=workload.prepare,
            repeatable=workload.repeatable,
            settled=seen.settled,
            copies=workload.copies,
        )
        timing = timer.time(task, rule, settings.warmup_s)
    timing.say_passed_over("latency", unavailable)
    if min(timing.samples_ms, default=0.0) <= 0:  # a time of 0 is one that the timer could not tell
        timing = dataclasses.replace(timing, samples_ms=[], below_resolution=True)
    verdict = judge(
        timing.samples_ms,
        seen.activity,
        threads=torch.get_num_threads(),
        cores=usable_cores(),
        below_resolution=timing.below_resolution,
        throttle_reasons=seen.throttle_reasons,
        clock_drift=seen.clock_drift,
        other_processes=seen.other_processes,
        plausible_floor_ms=plausible_floor_ms,
    )
    return summarize(timing, timer, verdict), seen.section()


def time_and_keep(
    workload: Workload,
    settings: MeasureSettings,
    measure: Callable[[Workload, MeasureSettings], tuple[Latency, Telemetry]],
) -> tuple[Latency, Telemetry, torch.Tensor]:
    """Time the workload's call with ``measure``; return also the output of the last one, which may have
    become another.
    """
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
