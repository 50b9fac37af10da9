"""Tables of growth, overtaking and memory, by what they say."""

import pytest

from attnbench.analysis.report import build_report
from attnbench.render.frontier_table import frontier_tables
from attnbench.render.growth_table import growth_tables, overtaking_tables, stand_outs
from attnbench.render.html import html_report
from attnbench.render.words import answers
from tests.analysis.synthetic import make_record, make_run

LENGTHS = [256, 512, 1024, 2048, 4096]


def report_of(theory_power: float = 2.0):
    """`naive` grows with the square, `linear` in proportion: they meet at 1024."""
    records = []
    for name, power in (("naive", 2.0), ("linear", 1.0)):
        for n in LENGTHS:
            record = make_record(name, n, latency_ms=10 * (n / 1024) ** power, noise=0.01)
            record.theory = {"executed_flops": int(1e3 * n ** (theory_power if name == "naive" else 1.0))}
            records.append(record)
    return build_report([make_run(records)])


def test_growth_has_exponent_interval_theory_and_verdict():
    (table,) = growth_tables(report_of())
    assert [title for title, _ in table.columns][:2] == ["Quantity", "Implementation"]
    rows = {row[1]: row for row in table.rows}
    assert rows["naive"][2:7] == ["256 to 4k", "2.00", "2.00 to 2.00", "2.00", "2.00, 2.00, 2.00, 2.00"]
    assert rows["linear"][-1] == "agrees"
    assert stand_outs(report_of()) == []


def test_another_order_than_theory_is_said_first():
    report = report_of(theory_power=1.0)
    (sentence,) = stand_outs(report)
    assert sentence.startswith("naive: latency grows as n^2.00 (2.00 to 2.00) where theory says n^1.00")
    assert "another order (+1.00)" in [row[-1] for row in growth_tables(report)[0].rows]
    page = html_report(report)
    assert page.index("latency grows as") < page.index('id="latency"')


def test_who_overtakes_whom_stands_in_the_table_and_in_the_answer():
    report = report_of()
    (table,) = overtaking_tables(report)
    (row,) = table.rows
    assert row[1:4] == ["Latency", "linear", "naive"]
    assert row[4] == "1k"
    lines = dict(line for answer in answers(report) for line in answer.lines if line[0] == "Crossing")
    assert lines["Crossing"].startswith("linear is faster than naive from about 1k tokens on (")


def test_two_lengths_bracket_a_crossing_without_a_fit():
    records = [
        make_record(name, n, latency_ms=10 * (n / 1024) ** power, noise=0.01)
        for name, power in (("naive", 2.0), ("linear", 1.0))
        for n in (512, 2048)
    ]
    report = build_report([make_run(records)])
    (row,) = overtaking_tables(report)[0].rows
    assert row[4:7] == ["1k", "512 to 2k", "between"]
    (text,) = [text for answer in answers(report) for subject, text in answer.lines if subject == "Crossing"]
    assert "from somewhere between 512 and 2k tokens on" in text


@pytest.mark.parametrize("noise", [0.9, 0.4])
def test_what_can_not_be_told_apart_does_not_cross(noise):
    records = [
        make_record(name, n, latency_ms=10 * (n / 1024) ** power, noise=noise)
        for name, power in (("naive", 1.1), ("linear", 1.0))
        for n in (512, 2048)
    ]
    assert overtaking_tables(build_report([make_run(records)])) == []


def test_how_long_a_sequence_fits():
    records = [make_record("naive", n, peak_bytes=96 * n * n) for n in LENGTHS]
    records.append(make_record("naive", 2**20, status="oom", predicted_peak_bytes=96 * 2**40))
    (table,) = frontier_tables(build_report([make_run(records)]))
    assert [title for title, _ in table.columns] == [
        "Implementation", "24.0 GiB", "80.0 GiB", "131 GiB", "Ran up to", "Out of memory from",
    ]  # fmt: skip
    assert table.rows == [["naive", "16k", "29k", "37k", "4k", "1024k"]]
