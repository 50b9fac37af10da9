"""Latency: the stopping rule on known samples, timers on injected clocks, what a case's samples become."""

import gc
import statistics
import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import scipy.stats
import torch

from attnbench.measure.cpu_timer import CpuTimer, resolution_ns
from attnbench.measure.cuda_timer import CudaStream, CudaTimer
from attnbench.measure.latency import measure_latency
from attnbench.measure.stopping import (
    FLOOR,
    StoppingRule,
    median_interval,
    median_ranks,
    quantile,
    relative_half_width,
)
from attnbench.measure.timing import Task
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

MS = 1_000_000


@dataclass
class FakeTime:
    """A clock that only work moves: ``now_ns`` of the host, ``device_ns`` of a queue that runs behind it."""

    now_ns: int = 0
    device_ns: int = 0
    log: list[str] = field(default_factory=list)

    def clock(self) -> int:
        return self.now_ns

    def work(self, duration_ns: int, name: str = "call") -> None:
        self.now_ns += duration_ns
        self.device_ns += duration_ns
        self.log.append(name)


@pytest.mark.parametrize("count", [1, 5, 6, 7, 10, 30, 31, 100, 1000, 5000])
def test_ranks_are_those_of_the_binomial(count):
    low, high = median_ranks(count)
    assert low + high == count - 1
    below = scipy.stats.binom(count, 0.5)
    if count < 6:
        assert (low, high) == (0, count - 1), "not even the extremes enclose the median with 95 %"
        return
    assert 1 - 2 * below.cdf(low) >= 0.95, "the interval covers"
    assert 1 - 2 * below.cdf(low + 1) < 0.95, "and is the shortest of its kind that does"


def test_the_interval_covers_the_median():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        low, high = median_interval(generator.lognormal(0, 0.5, 31).tolist())
        covered += low <= 1 <= high
    assert 0.94 <= covered / 1000 <= 0.99


def test_quantiles_are_numpys():
    samples = np.random.default_rng(1).normal(10, 1, 37).tolist()
    for fraction in (0, 0.1, 0.5, 0.9, 1):
        assert quantile(samples, fraction) == pytest.approx(np.quantile(samples, fraction), rel=1e-12)
    assert quantile([4.0], 0.9) == 4.0


def test_quiet_samples_stop_at_the_minimum_and_noisy_ones_at_the_budget():
    rule = StoppingRule(min_samples=10, budget_s=5)
    quiet = [1.0, 1.001] * 5
    assert not rule.enough(quiet[:9], 0.1)
    assert rule.enough(quiet, 0.1)
    noisy = [1.0, 2.0] * 20
    assert not rule.enough(noisy, 4.9)
    assert rule.enough(noisy, 5.0)
    assert rule.enough(noisy * 25, 0.1), "no more than max_samples"


def test_a_few_samples_are_taken_whatever_they_cost():
    rule = StoppingRule(min_samples=10, budget_s=1)
    assert [rule.enough([9.0] * count, 1e9) for count in (0, 1, 2, 3)] == [False, False, False, True]
    assert FLOOR == 3


def test_zeros_never_look_converged():
    assert relative_half_width([0.0] * 50) == float("inf")


def test_the_timer_of_the_cpu_counts_calls_and_nothing_else():
    fake = FakeTime()
    task = Task(
        call=lambda: fake.work(3 * MS),
        prepare=lambda: fake.work(50 * MS, "prepare"),
        repeatable=False,
    )
    rule = StoppingRule(min_samples=10, budget_s=60)
    timing = CpuTimer(clock=Ticking(fake).clock).time(task, rule, warmup_s=0.1)
    assert timing.samples_ms == pytest.approx([3.0] * 10, rel=1e-3)
    assert timing.first_call_s == pytest.approx(0.003, rel=1e-3)
    assert fake.log.count("prepare") == fake.log.count("call")


@dataclass
class Ticking:
    """Each reading of the clock itself takes 40 ns."""

    time: FakeTime

    def clock(self) -> int:
        self.time.now_ns += 40
        return self.time.now_ns


def test_short_calls_are_warmed_up_for_as_long_as_others():
    """Of 20 µs, some ten thousand calls make the 0.2 s."""
    fake = FakeTime()
    task = Task(
        call=lambda: fake.work(20_000),
        prepare=lambda: None,
        repeatable=True,
        settled=lambda: fake.log.append("settled"),
    )
    CpuTimer(clock=Ticking(fake).clock).time(task, StoppingRule(min_samples=10), warmup_s=0.2)
    assert fake.log.index("settled") * 20_000 >= 0.99 * 200 * MS


def test_a_clock_that_stands_still_ends_the_warm_up():
    task = Task(call=lambda: None, prepare=lambda: None, repeatable=True)
    timing = CpuTimer(clock=lambda: 7).time(task, StoppingRule(min_samples=10), warmup_s=0.2)
    assert (timing.samples_ms, timing.below_resolution) == ([], True)


def test_a_slow_call_is_not_repeated_for_nothing():
    """A second a call, more than the budget: it is its own warm-up, and three calls are three samples."""
    fake = FakeTime()
    task = Task(call=lambda: fake.work(1000 * MS), prepare=lambda: None, repeatable=True)
    timing = CpuTimer(clock=Ticking(fake).clock).time(task, StoppingRule(min_samples=10), warmup_s=0.2)
    assert timing.samples_ms == pytest.approx([1000.0] * 3)
    assert fake.log == ["call"] * 3


@pytest.mark.parametrize(
    ("launches", "call_ms", "calls", "samples"),
    [(1, 1000, 3, 3), (5, 1000, 1, 1), (5, 500, 2, 1), (2, 500, 3, 2)],
)
def test_the_launches_of_a_case_share_its_budget(launches, call_ms, calls, samples):
    """A second of it: a call as long is its own warm-up, and all launches together give three samples."""
    fake = FakeTime()
    task = Task(call=lambda: fake.work(call_ms * MS), prepare=lambda: None, repeatable=True)
    rule = StoppingRule.of_launch(MeasureSettings(launches=launches))
    assert rule.budget_s * launches == pytest.approx(1.0)
    assert rule.max_samples * launches == 1000
    timing = CpuTimer(clock=Ticking(fake).clock).time(task, rule, warmup_s=0.2)
    assert timing.samples_ms == pytest.approx([float(call_ms)] * samples)
    assert fake.log == ["call"] * calls


def test_short_calls_share_a_sample():
    fake = FakeTime()
    task = Task(call=lambda: fake.work(700), prepare=lambda: None, repeatable=True)
    timing = CpuTimer(clock=Ticking(fake).clock).time(task, StoppingRule(min_samples=10), warmup_s=0.0)
    assert timing.samples_ms == pytest.approx([0.0007] * 10, rel=1e-2), "the 40 ns of the clock are spread"
    calls_a_sample = len(fake.log) / len(timing.samples_ms)
    assert calls_a_sample * 700 >= 100_000


def test_twice_the_work_takes_twice_as_long():
    """From calls that share a sample to calls that are samples of their own."""
    rule, medians = StoppingRule(min_samples=10), []
    for work_ns in (10_000, 20_000, 1 * MS, 2 * MS):
        fake = FakeTime()
        task = Task(call=partial(fake.work, work_ns), prepare=lambda: None, repeatable=True)
        timing = CpuTimer(clock=Ticking(fake).clock).time(task, rule, warmup_s=0.0)
        medians.append(statistics.median(timing.samples_ms))
    assert medians == pytest.approx([0.01, 0.02, 1.0, 2.0], rel=1e-2)


def test_the_resolution_of_a_clock():
    fake = FakeTime()
    assert resolution_ns(Ticking(fake).clock) == 40
    assert resolution_ns(lambda: 5) is None
    measured = resolution_ns(time.perf_counter_ns)
    assert measured is not None
    assert 0 < measured < 1_000_000


def test_a_sleep_is_timed_right():
    task = Task(call=lambda: time.sleep(0.002), prepare=lambda: None, repeatable=True)
    timing = CpuTimer().time(task, StoppingRule(min_samples=10, budget_s=0.2), warmup_s=0.0)
    assert 2.0 < min(timing.samples_ms) < 20


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_off_while_sampling_and_then_as_before(was_enabled):
    seen = []
    try:
        gc.enable() if was_enabled else gc.disable()
        task = Task(call=lambda: seen.append(gc.isenabled()), prepare=lambda: None, repeatable=False)
        CpuTimer().time(task, StoppingRule(min_samples=3, budget_s=0.0), warmup_s=0.0)
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
    assert not any(seen)


@dataclass
class FakeStream:
    """A device on which a flush takes 58 µs."""

    time: FakeTime

    def flush(self) -> None:
        self.time.work(58_000, "flush")

    def mark(self) -> int:
        return self.time.device_ns

    def elapsed_ms(self, start: int, end: int) -> float:
        return (end - start) * 1e-6

    def synchronize(self) -> None:
        self.time.log.append("synchronize")


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_flush_is_never_part_of_a_sample(cache):
    """A kernel of 4 µs behind a flush of 58 µs takes 4 µs, not 62."""
    fake = FakeTime()
    timer = CudaTimer(FakeStream(fake), cache, host_clock=fake.clock)
    task = Task(
        call=lambda: fake.work(4_000, "call"), prepare=lambda: fake.work(9_000, "prepare"), repeatable=True
    )
    timing = timer.time(task, StoppingRule(min_samples=30, budget_s=1), warmup_s=0.2)
    assert timing.samples_ms == pytest.approx([0.004] * len(timing.samples_ms))
    assert len(timing.samples_ms) >= 30
    assert timing.first_call_s < 0.001
    expected = ["prepare", "flush", "call"] if cache == "cold" else ["prepare", "call"]
    work = [name for name in fake.log if name != "synchronize"]
    assert work == expected * (len(work) // len(expected)), (
        "each sample is prepared, flushed if cold, then called"
    )
    warm_up_ns = fake.now_ns - len(timing.samples_ms) * (71_000 if cache == "cold" else 13_000)
    assert warm_up_ns >= 200 * MS


def test_slow_calls_are_queued_in_small_chunks():
    fake = FakeTime()
    timer = CudaTimer(FakeStream(fake), "cold", host_clock=fake.clock)
    task = Task(call=lambda: fake.work(100 * MS), prepare=lambda: None, repeatable=True)
    timing = timer.time(task, StoppingRule(min_samples=30, budget_s=1), warmup_s=0.2)
    assert len(timing.samples_ms) <= 12, "the budget of a second ends after ten samples or so"
    assert timing.samples_ms == pytest.approx([100.0] * len(timing.samples_ms))


def test_an_empty_kernel_is_below_the_resolution_of_events():
    fake = FakeTime()
    timer = CudaTimer(FakeStream(fake), "cold", host_clock=fake.clock)
    task = Task(call=lambda: None, prepare=lambda: None, repeatable=True)
    timing = timer.time(task, StoppingRule(min_samples=30, budget_s=0.1), warmup_s=0.0)
    assert timing.below_resolution
    assert timing.samples_ms == []


@pytest.mark.gpu
def test_cold_caches_are_slower_than_warm_ones_and_never_beat_the_memory():
    x = torch.randn(16 << 20, device="cuda")
    task = Task(call=lambda: x.add_(1), prepare=lambda: None, repeatable=True)
    stream = CudaStream(torch.device("cuda"))
    rule = StoppingRule(min_samples=50, budget_s=1)
    cold, warm = (
        quantile(CudaTimer(stream, cache).time(task, rule, 0.2).samples_ms, 0.5) for cache in ("cold", "warm")
    )
    assert cold > warm * 0.98
    assert 2 * x.nbytes / (cold * 1e-3) < 10e12


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_a_case_gets_a_latency_with_every_sample(mode):
    workload = build_workload(Case(implementation="sdpa", seqlen_q=64, mode=mode))
    settings = MeasureSettings(launches=1, latency_budget_s=0.2, warmup_s=0.02, min_samples=5)
    section, telemetry = measure_latency(workload, settings, unavailable={})
    assert section.timer == "perf_counter"
    assert section.cache == "warm"
    assert section.launches == 1
    assert section.launch_medians_ms == [section.median_ms]
    assert section.compile_s is None
    assert section.samples_ms is not None
    assert len(section.samples_ms) >= FLOOR
    assert section.median_ms == quantile(section.samples_ms, 0.5)
    assert section.ci95_low_ms is section.ci95_high_ms is None, "which several launches have"
    assert section.inner_ci95_low_ms is not None
    assert section.inner_ci95_high_ms is not None
    assert 0 < section.inner_ci95_low_ms <= section.median_ms <= section.inner_ci95_high_ms
    assert section.p10_ms is not None
    assert section.p90_ms is not None
    assert section.p10_ms <= section.median_ms <= section.p90_ms
    assert section.verdict
    assert telemetry.context_switches is not None
