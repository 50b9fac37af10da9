"""The verdict on a latency: on made-up activity, below a clock's resolution, faster than possible."""

import pytest

from attnbench.device.activity import Activity
from attnbench.measure.cpu_timer import CpuTimer
from attnbench.measure.latency import measure_latency, summarize
from attnbench.measure.stopping import StoppingRule
from attnbench.measure.timing import Task
from attnbench.measure.verdicts import judge
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

QUIET = Activity(
    wall_s=1.0,
    own_cpu_s=1.0,
    foreign_cpu_s=0.0,
    runqueue_wait_s=0.0,
    voluntary_switches=0,
    involuntary_switches=0,
)


def activity(**changes) -> Activity:
    fields = {name: getattr(QUIET, name) for name in QUIET.__dataclass_fields__}
    return Activity(**{**fields, **changes})


STEADY = [1.0, 1.001, 1.002] * 10


def verdict(samples=STEADY, happened=QUIET, threads=1, cores=2, **given):
    return judge(samples, happened, threads=threads, cores=cores, **given)


def test_quiet_and_steady_is_valid():
    assert verdict() == ["valid"]


def test_few_and_noisy_samples_are_called_so():
    assert verdict([1.0, 1.0, 1.0]) == ["few_samples"]
    assert verdict([1.0, 2.0] * 20) == ["noisy"]
    assert verdict([1.0, 3.0, 1.0]) == ["few_samples", "noisy"]


def test_waiting_for_a_core_is_shared():
    assert verdict(happened=activity(runqueue_wait_s=0.2)) == ["shared"]
    assert verdict(happened=activity(runqueue_wait_s=0.001, involuntary_switches=3)) == ["valid"]


def test_a_neighbour_on_the_other_core_is_no_harm_to_one_thread_but_to_two():
    busy = activity(foreign_cpu_s=1.0, involuntary_switches=40)
    assert verdict(happened=busy, threads=1) == ["valid"]
    assert verdict(happened=busy, threads=2) == ["shared"]
    assert verdict(happened=activity(foreign_cpu_s=0.05, involuntary_switches=1), threads=2) == ["valid"]


def test_medians_of_whole_scheduler_slices_are_shared_however_tight():
    """Two threads on two cores beside a busy process: 8.0 ms for a case of 0.41 ms, with a tight interval."""
    slices = [8.0, 8.01, 7.99, 8.0, 4.0, 12.01] * 6
    assert "shared" in verdict(slices, activity(foreign_cpu_s=0.8), threads=1)
    assert verdict([8.0, 8.01, 7.99] * 10) == ["valid"], "nobody else was there: it just takes 8 ms"
    assert verdict([8.5, 8.51, 8.49] * 10, activity(foreign_cpu_s=0.8), threads=1) == ["valid"]


def test_where_the_system_tells_nothing_nothing_is_claimed():
    blind = activity(foreign_cpu_s=None, runqueue_wait_s=None)
    assert verdict(happened=blind, threads=2) == ["valid"]


def test_throttled_and_implausible():
    assert verdict(throttle_reasons=["power_cap"]) == ["throttled"]
    assert verdict(plausible_floor_ms=1.5) == ["implausible"]
    assert verdict(plausible_floor_ms=0.5) == ["valid"]


@pytest.mark.parametrize("step_ns", [0, 100])
def test_a_call_below_the_clocks_resolution_has_no_latency(step_ns):
    """A clock whose differences are 0.0, then one of 1e-7 s however much work lies between two readings."""
    readings = iter(range(0, 1 << 60, step_ns)) if step_ns else None
    timer = CpuTimer(clock=(lambda: next(readings)) if readings else (lambda: 7))
    timing = timer.time(
        Task(call=lambda: None, prepare=lambda: None, repeatable=True), StoppingRule(), warmup_s=0.0
    )
    assert timing.below_resolution
    verdict = judge(timing.samples_ms, QUIET, threads=1, cores=2, below_resolution=timing.below_resolution)
    section = summarize(timing, timer, verdict)
    assert section.verdict == ["below_resolution"]
    for name in ("median_ms", "p10_ms", "p90_ms", "ci95_low_ms", "ci95_high_ms", "samples_ms"):
        assert getattr(section, name) is None, f"{name} must be absent, not 0 or infinite"


def test_an_impossible_speed_is_called_implausible():
    workload = build_workload(Case(implementation="sdpa", seqlen_q=64))
    settings = MeasureSettings(latency_budget_s=0.05, warmup_s=0.0, min_samples=3)
    section, _ = measure_latency(workload, settings, plausible_floor_ms=1e6, unavailable={})
    assert section.verdict is not None
    assert "implausible" in section.verdict
