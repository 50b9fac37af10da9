import csv
import io

import pytest

from attnbench.analysis.report import build_report
from attnbench.render.files import write_report
from attnbench.render.markdown import escape_markdown, markdown_report
from attnbench.render.tables import csv_text
from attnbench.render.terminal import render_summary
from tests.analysis.synthetic import make_record, make_run, quick_run


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_summary_of_a_run_keeps_to_the_width(width):
    lines = render_summary(quick_run(), width).splitlines()
    assert max(map(len, lines)) <= width


def test_the_summary_has_every_implementation_by_length_with_statuses():
    lines = render_summary(quick_run()).splitlines()
    assert lines[0] == "quick: 90 cases: 81 ok, 8 unsupported, 1 oom"
    start = lines.index("Latency: attention, forward, causal")
    assert lines[start + 1].split() == ["256", "512", "1k", "2k", "4k"]
    assert lines[start + 2].split() == [
        "naive",
        "1.90",
        "ms",
        "7.60",
        "ms",
        "30.4",
        "ms",
        "122",
        "ms",
        "486",
        "ms",
    ]
    assert any(line.startswith("- triton-flash: interpreted") for line in lines)
    assert any(line.split() == ["triton-flash", *["unsup."] * 4] for line in lines)
    assert any(line.split()[:1] == ["naive"] and line.endswith("oom") for line in lines)
    assert "Peak memory: attention, forward, causal" in lines
    assert any("linear is fastest at 4k tokens" in line for line in lines)


def test_the_summary_of_nothing_and_of_failures():
    assert render_summary(make_run([])).startswith("quick: 0 cases")
    text = render_summary(make_run([make_record(status="crashed", reason="signal 9")]))
    assert "1 crashed" in text
    assert "Latency: none for attention, forward, causal" in text


def test_long_names_do_not_break_the_table():
    text = render_summary(
        make_run([make_record("x" * 200, latency_ms=1.0), make_record("y", latency_ms=1.0)])
    )
    assert max(map(len, text.splitlines())) <= 80


def test_the_short_form_has_answer_pictures_table_and_reasons():
    text = markdown_report(build_report([quick_run()]), [("Latency", "plots/latency.png")])
    assert text.startswith("# quick: attention benchmark\n")
    assert "- Speed: linear is fastest at 4k tokens (14.4 ms)" in text
    assert "![Latency](plots/latency.png)" in text
    assert "## Who overtakes whom" in text
    assert "| Latency | linear | 256 to 4k | 1.00 |" in text
    table = [line for line in text.partition("## All cases")[2].splitlines() if line.startswith("|")]
    assert len(table) == 90 + 2
    assert {line.count("|") for line in table} == {table[0].count("|")}
    assert "- oom, 1 case of naive: predicted peak 1.61 GiB is over the limit of 1 GiB" in text


def test_a_run_without_records_says_what_did_not_run():
    run = make_run([], cases={"a": {}, "b": {}})
    assert run.missing == ["a", "b"]
    text = markdown_report(build_report([run]))
    assert "2 planned cases without a record" in text
    assert "- not run, 2 cases of a, b: planned, but without a record" in text
    assert "Nothing." not in text
    assert "## All cases" not in text
    assert "Growth" not in text


def test_markdown_shows_hostile_text_as_it_is():
    hostile = "<img src=x> | `a` [link](javascript:x) *b* _c_ fwd_bwd\nnext # line"
    escaped = escape_markdown(hostile)
    assert escaped == (r"&lt;img src=x\> \| \`a\` \[link\](javascript:x) \*b\* \_c\_ fwd_bwd next \# line")
    text = markdown_report(build_report([make_run([make_record("naive", status="error", reason=hostile)])]))
    assert "<img" not in text
    assert "javascript" in text


def test_csv_has_every_case_with_exact_numbers():
    rows = list(csv.DictReader(io.StringIO(csv_text(build_report([quick_run()])))))
    assert len(rows) == 90
    assert (rows[0]["implementation"], rows[0]["latency_ms"], rows[0]["peak_bytes"]) == (
        "naive",
        "1.9",
        "8388608",
    )
    (oom,) = [row for row in rows if row["status"] == "oom"]
    assert (oom["latency_ms"], oom["seqlen"]) == ("", "4096")
    assert oom["reason"].startswith("predicted peak")


def test_csv_starts_no_formula():
    record = make_record("naive", status="error", reason='=HYPERLINK("http://x")')
    (row,) = csv.DictReader(io.StringIO(csv_text(build_report([make_run([record])]))))
    assert row["reason"] == '\'=HYPERLINK("http://x")'


@pytest.mark.parametrize("absurd", [1e308, 1e200, -1.0, float("nan"), float("inf")])
def test_a_number_that_nothing_can_measure_is_no_number(absurd, tmp_path, capsys):
    records = [
        make_record("naive", n, latency_ms=absurd, error=absurd, noise=0.0, samples_ms=[1.0])
        for n in (256, 512)
    ]
    records.append(make_record("sdpa", 256, latency_ms=1.0, error=1e-7))
    write_report([make_run(records)], tmp_path, ["html", "md", "svg"])
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) < 1000
    assert "000000000000" not in text
    assert capsys.readouterr().err == ""
