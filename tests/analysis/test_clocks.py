"""A clock that was low for a whole case, seen beside the other cases of its run."""

import pytest

from attnbench.analysis.clocks import below_usual, judged_by_clock
from attnbench.analysis.report import build_report
from attnbench.analysis.rows import rows_of
from attnbench.render.tables import case_table
from attnbench.render.terminal import render_summary
from attnbench.render.words import clock_sentence
from tests.analysis.synthetic import make_record, make_run


def timed(*clocks_mhz, device="cuda", **given):
    return [
        make_record("sdpa", 256 << place, latency_ms=1.0, sm_clock_mhz=clock, device=device, **given)
        for place, clock in enumerate(clocks_mhz)
    ]


def judged(*records, **runs):
    found = runs or {"run": records}
    return judged_by_clock(rows_of({name: make_run(records) for name, records in found.items()}))


def verdicts(rows):
    return [row.latency_verdict for row in rows]


@pytest.mark.parametrize(
    ("clock_mhz", "verdict"),
    [(1980, "valid"), (1881, "valid"), (1880, "throttled"), (1410, "throttled"), (2200, "valid")],
)
def test_more_than_5_percent_below_the_median_is_throttled(clock_mhz, verdict):
    rows = judged(*timed(1980, 1980, clock_mhz, 1980))
    assert verdicts(rows) == [("valid",), ("valid",), (verdict,), ("valid",)]
    assert {row.usual_sm_clock_mhz for row in rows} == {1980}


def test_the_word_joins_what_else_speaks_against_the_latency_and_is_said_once():
    records = timed(1980, 1980, 1980)
    records += timed(1410, verdict=("noisy",), head_dim=32) + timed(1410, verdict=("throttled",), head_dim=16)
    assert verdicts(judged(*records))[3:] == [("noisy", "throttled"), ("throttled",)]


def test_usual_is_of_one_run_on_one_device():
    rows = judged(slow=timed(1410, 1410, 1410), fast=timed(1980, 1980, 1980))
    assert set(verdicts(rows)) == {("valid",)}
    mixed = judged(*timed(1410, 1410, 1410), *timed(1980, 1980, 1980, device="another"))
    assert set(verdicts(mixed)) == {("valid",)}


def test_two_clocks_have_no_usual_one():
    rows = judged(*timed(1980, 1410))
    assert verdicts(rows) == [("valid",), ("valid",)]
    assert [row.usual_sm_clock_mhz for row in rows] == [None, None]


def test_cases_without_a_clock_or_a_latency_neither_judge_nor_are_judged():
    failed = make_record("sdpa", 64, status="incorrect", sm_clock_mhz=300.0, device="cuda")
    silent = make_record("sdpa", 128, latency_ms=1.0, device="cuda")
    rows = judged(failed, silent, *timed(1980, 1980, None, 1980))
    assert [row.usual_sm_clock_mhz for row in rows] == [None, None, 1980, 1980, None, 1980]
    assert not any(map(below_usual, rows))
    assert rows[0].latency_verdict == ()


def test_a_report_says_it_with_the_arithmetic():
    run = make_run(timed(1980, 1980, 1410, 1485, 1980))
    report = build_report([run])
    arithmetic = "SM clock 1410 MHz, 29 % below the run's usual 1980 MHz"
    assert report.summary.doubts == {"throttled": 2}
    assert clock_sentence(report.summary) == (
        f"2 latencies at a lower clock than is usual in the run; the slowest: sdpa at 1k, {arithmetic}."
    )
    assert [row[-1] for row in case_table(report).rows][2] == f"throttled; {arithmetic}"
    assert arithmetic in " ".join(render_summary(run).split())
    (ranking,) = report.summary.latency
    assert ranking.doubts == (), "the longest length ran at the usual clock"


def test_a_run_on_a_processor_has_nothing_to_say():
    report = build_report([make_run(timed(None, None, None, device="cpu"))])
    assert clock_sentence(report.summary) == ""
    assert report.summary.doubts == {}
