"""How long a run still takes, from how long it took so far."""

from pathlib import Path

import pytest

from attnbench.cli.progress import ProgressOnStderr, seconds_left
from attnbench.plan.case import Case
from tests.analysis.synthetic import make_record


def test_a_case_costs_a_fixed_time_and_one_that_grows():
    works = [1, 2, 4, 8, 16]
    assert seconds_left(works, [1.5, 2.0, 3.0]) == pytest.approx((1 + 8 / 2) + (1 + 16 / 2))


@pytest.mark.parametrize(
    ("works", "seconds"),
    [
        ([5, 5, 5, 9], [2.0, 4.0]),
        ([1, 2, 3, 4], [4.0, 2.0]),
        ([3, 1, 2], [3.0]),
        ([10, 20, 30, 40], [1.0, 5.0]),
    ],
)
def test_without_a_sensible_line_the_rest_is_like_the_mean(works, seconds):
    mean = sum(seconds) / len(seconds)
    assert seconds_left(works, seconds) == pytest.approx(mean * (len(works) - len(seconds)))


def test_a_line_says_latency_and_bytes_as_tables_do(capsys):
    progress = ProgressOnStderr()
    progress.started(Path("run"), [Case(implementation="naive", seqlen_q=64)] * 2, 1)
    progress.case_finished(make_record("naive", latency_ms=2710.0))
    progress.case_finished(make_record("naive", status="oom", reason="predicted to need 2147483648 bytes"))
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "2 cases to measure, 1 has a result already; run run"
    assert lines[0].endswith(" ok 2.71 s")
    assert lines[1].endswith(" oom: predicted to need 2147483648 bytes (2.00 GiB)")


def test_further_rounds_say_their_number_and_what_goes_wrong(capsys):
    progress = ProgressOnStderr()
    cases = [Case(implementation="naive", seqlen_q=64)] * 2
    progress.started(Path("run"), cases, 0)
    progress.round_started(1, 3, cases)
    progress.case_finished(make_record("naive", latency_ms=2.0))
    progress.case_finished(make_record("naive", latency_ms=2.0))
    assert progress._bar.tasks[0].total == 6
    progress.round_started(2, 3, cases[:1])
    assert progress._bar.tasks[0].total == 4, "two are done, and of one case two launches are left"
    progress.case_finished(make_record("naive", latency_ms=2.0))
    progress.round_started(3, 3, cases[:1])
    progress.case_finished(make_record("naive", status="crashed", reason="in launch 3: killed by SIGSEGV"))
    assert progress._bar.tasks[0].completed == progress._bar.tasks[0].total == 4
    _, first, second, round_2, round_3, broken = capsys.readouterr().err.splitlines()
    assert first.startswith("[1/2] ")
    assert second.startswith("[2/2] ")
    assert (round_2, round_3) == ("launch 2 of 3: 1 case", "launch 3 of 3: 1 case")
    assert broken.endswith(" crashed: in launch 3: killed by SIGSEGV")


def test_rounds_to_come_take_as_long_as_this_one():
    assert seconds_left([1, 1, 1], [2.0], 3) == pytest.approx(4.0 + 3 * 6.0)


def test_nothing_is_left_at_the_end():
    assert seconds_left([1, 2], [1.0, 2.0]) == 0
