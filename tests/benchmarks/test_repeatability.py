"""What the benchmark of repeatability says of runs whose numbers are known."""

from benchmarks.repeatability import repeated, run_factors, table, work_fraction
from tests.analysis.synthetic import make_record, make_run


def runs(*medians: float):
    made = []
    for median in medians:
        wide, narrow = (
            make_record("wide", latency_ms=median, noise=0.2),
            make_record("narrow", latency_ms=median),
        )
        assert narrow.latency is not None
        narrow.latency.inner_ci95_low_ms = narrow.latency.inner_ci95_high_ms = median
        made.append(make_run([wide, narrow, make_record("broken", status="oom")]))
        made[-1].meta.update(wall_s=50.0, work_s=40.0)
    return made


def test_spread_and_coverage():
    wide, narrow = repeated(runs(10.0, 9.0, 11.0, 10.0, 9.8))
    assert wide.median_ms == narrow.median_ms == 10.0
    assert wide.spread == narrow.spread == 11.0 / 9.0 - 1
    assert (wide.covered, narrow.covered) == (5, 3), "by 20 %, by 5 %"
    assert (wide.inner_covered, narrow.inner_covered) == (0, 2)
    text = table([wide, narrow], runs(10.0))
    assert "holds the grand median in 8 of 10: 80.0% (goal: 90%); the one inside launches in 2: 20.0%" in text
    assert "timed, counted or checked: 80% to 80% of 50 s" in text


def test_what_all_cases_of_a_run_share_is_told_apart():
    cases = repeated(runs(10.0, 10.0, 40.0))
    assert run_factors(cases, 3) == [1.0, 1.0, 4.0]
    assert "grand median: 1.00, 1.00, 4.00" in table(cases, runs(10.0, 10.0, 40.0))


def test_one_run_repeats_nothing():
    assert repeated(runs(1.0)) == []
    assert work_fraction(make_run([])) is None
