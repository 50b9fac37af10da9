"""Several launches become one latency: its formulas against scipy, its coverage by simulation."""

import math

import numpy as np
import pytest
import scipy.stats

from attnbench.measure.launches import (
    ONE_LAUNCH,
    join_launch,
    joined_latency,
    latency_of,
    launch_interval,
    say_what_one_launch_lacks,
    student_t,
)
from attnbench.measure.record import Latency, Record, Telemetry
from attnbench.measure.stopping import median_interval


def one(*samples: float, verdict: str = "valid", timer: str = "told") -> Latency:
    return latency_of([samples], timer=timer, cache="warm", verdict=[verdict])


def over(*launches: Latency) -> Latency:
    joined = launches[0]
    for launch in launches[1:]:
        joined = joined_latency(joined, launch)
    return joined


@pytest.mark.parametrize("degrees", [*range(1, 12), 29, 30, 99, 100])
def test_t_is_that_of_scipy(degrees):
    assert student_t(degrees) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=1e-9)


@pytest.mark.parametrize("medians", [(1.0, 1.1), (2.0, 2.2, 1.9), (5.0, 5.5, 4.9, 5.1, 5.0), (3.0,) * 5])
def test_the_interval_is_students_t_over_the_logarithms(medians):
    low, high = launch_interval(medians)
    logs = np.log(medians)
    expected = scipy.stats.t.interval(
        0.95, len(logs) - 1, loc=logs.mean(), scale=max(scipy.stats.sem(logs), 1e-300)
    )
    assert (low, high) == pytest.approx(tuple(np.exp(expected)))
    assert 0 < low <= np.median(medians) <= high


def test_the_interval_holds_the_median_that_is_shown():
    medians = [1.0] * 6 + [2.0] * 5
    low, high = launch_interval(medians)
    assert low == 1.0, "the interval round the mean alone begins above it"
    assert high > 1.5
    assert launch_interval([1.0]) is None
    assert launch_interval([]) is None


def coverage(truth: float, draw, launches: int, trials: int) -> float:
    hits = 0
    for _ in range(trials):
        low, high = launch_interval(draw(launches))
        hits += low <= truth <= high
    return hits / trials


@pytest.mark.parametrize("launches", [2, 3, 5, 12])
def test_nineteen_of_twenty_intervals_hold_the_median_of_launches(launches):
    rng = np.random.default_rng(7)
    found = coverage(4.0, lambda count: 4.0 * np.exp(rng.normal(0, 0.1, count)), launches, 3000)
    assert found == pytest.approx(0.95, abs=0.015)


def test_launches_that_a_neighbour_slowed_now_and_then_are_covered_in_nine_of_ten():
    rng = np.random.default_rng(7)

    def draw(count):
        return np.exp(rng.normal(0, 0.01, count)) * np.where(rng.random(count) < 0.1, 1.5, 1.0)

    assert coverage(1.0, draw, 5, 3000) > 0.9


def test_the_interval_inside_launches_misses_what_launches_differ_by():
    """What the issue is about: one process's samples agree with each other, not with the next process."""
    rng = np.random.default_rng(7)
    inner, trials = 0, 300
    for _ in range(trials):
        launch = 4.0 * math.exp(rng.normal(0, 0.05)) * np.exp(rng.normal(0, 0.02, 30))
        low, high = median_interval(launch.tolist())
        inner += low <= 4.0 <= high
    assert inner / trials < 0.5


def test_every_number_of_three_launches():
    joined = over(one(1.0, 3.0, 2.0), one(4.0), one(8.0, 6.0))
    assert joined.launches == 3
    assert joined.launch_medians_ms == [2.0, 4.0, 7.0]
    assert joined.median_ms == 4.0
    assert joined.samples_ms == [1.0, 3.0, 2.0, 4.0, 8.0, 6.0]
    assert joined.samples_per_launch == [3, 1, 2]
    assert (joined.p10_ms, joined.p90_ms) == (1.5, 7.0)
    assert (joined.inner_ci95_low_ms, joined.inner_ci95_high_ms) == (1.0, 8.0)
    assert (joined.ci95_low_ms, joined.ci95_high_ms) == launch_interval([2.0, 4.0, 7.0])
    assert joined == latency_of(
        [[1.0, 3.0, 2.0], [4.0], [8.0, 6.0]], timer="told", cache="warm", verdict=["noisy"]
    )


def test_one_launch_has_no_interval_over_launches():
    record = Record(case_id="a", case={}, status="ok", latency=one(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    say_what_one_launch_lacks(record)
    assert record.latency is not None
    assert record.latency.ci95_low_ms is record.latency.ci95_high_ms is None
    assert (record.latency.inner_ci95_low_ms, record.latency.inner_ci95_high_ms) == (1.0, 6.0)
    assert record.unavailable == {"latency.ci95_low_ms": ONE_LAUNCH, "latency.ci95_high_ms": ONE_LAUNCH}
    joined = join_launch(record, Record(case_id="a", case={}, status="ok", latency=one(2.0)), 2)
    assert joined.unavailable == {}
    assert record.unavailable, "the record that stands in the file is left alone"


def test_a_launch_that_another_timer_had_to_time_is_told_apart():
    """CUPTI serves one process at a time: a later launch may find it taken."""
    first = Record(case_id="a", case={}, status="ok", latency=one(1.0, timer="cupti-activity"))
    launch = Record(case_id="a", case={}, status="ok", latency=one(1.0, timer="cuda-events"))
    launch.unavailable["latency.cupti-activity"] = "another process uses CUPTI"
    joined = join_launch(join_launch(first, launch, 2), launch, 3)
    assert joined.latency.timer == "cupti-activity, cuda-events"
    assert joined.unavailable == {"latency.cupti-activity": "in launch 2: another process uses CUPTI"}


def test_a_reading_that_a_later_launch_had_is_missing_no_more():
    first = Record(case_id="a", case={}, status="ok", latency=one(1.0), telemetry=Telemetry(power_w=300.0))
    first.unavailable["telemetry.sm_clock_mhz"] = "this GPU does not tell it"
    told = Telemetry(sm_clock_mhz=1980.0)
    launch = Record(case_id="a", case={}, status="ok", latency=one(1.0), telemetry=told)
    joined = join_launch(first, launch, 2)
    assert (joined.telemetry.power_w, joined.telemetry.sm_clock_mhz) == (300.0, 1980.0)
    assert joined.unavailable == {}


def test_verdicts_are_joined_and_the_scatter_is_judged_over_launches():
    calm = [one(1.0, 1.01, verdict="few_samples")] * 4
    assert over(*calm).verdict == ["valid"], "four launches make an interval, few samples or not"
    assert over(*calm, one(1.0, verdict="shared"), one(1.0, verdict="throttled")).verdict == [
        "shared",
        "throttled",
    ]
    assert over(one(1.0, verdict="valid"), one(2.0, verdict="valid")).verdict == ["noisy"]
    blind = latency_of([[]], timer="told", cache="warm", verdict=["below_resolution"])
    assert over(one(1.0), blind).verdict == ["below_resolution", "few_samples"]
    assert over(one(1.0), blind).launches == 2
    assert over(one(1.0), blind).launch_medians_ms == [1.0]


def test_what_was_counted_adds_up_and_states_are_the_latest():
    def launch(**telemetry) -> Record:
        return Record(case_id="a", case={}, status="ok", latency=one(1.0), telemetry=Telemetry(**telemetry))

    joined = join_launch(
        launch(context_switches=2, foreign_cpu_s=0.5, temperature_c=40.0, throttle_reasons=["power_cap"]),
        launch(context_switches=3, foreign_cpu_s=0.25, temperature_c=60.0, throttle_reasons=["heat"]),
        2,
    )
    assert joined.telemetry == Telemetry(
        context_switches=5, foreign_cpu_s=0.75, temperature_c=60.0, throttle_reasons=["heat", "power_cap"]
    )


def test_a_record_from_before_there_were_launches_can_have_more():
    old = Latency(median_ms=2.0, samples_ms=[1.0, 2.0, 3.0], launches=1, verdict=["valid"])
    joined = joined_latency(old, one(4.0))
    assert joined.launch_medians_ms == [2.0, 4.0]
    assert joined.samples_per_launch == [3, 1]
