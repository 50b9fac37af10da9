"""The roofline as tables and as a plot: what they hold."""

import math
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import same_color
from matplotlib.lines import Line2D

from attnbench.analysis.report import Report, build_report
from attnbench.measure.record import Flops, Provenance, Record, Traffic
from attnbench.render.files import write_report
from attnbench.render.html import html_report
from attnbench.render.markdown import markdown_report
from attnbench.render.roofline_plot import roofline_figure, roofline_panels
from attnbench.render.roofline_table import TITLE, roofline_tables
from attnbench.render.styles import StyleBook, hex_color
from tests.analysis.synthetic import make_record, make_run

CEILINGS: dict[str, Any] = {
    "cpu": {
        "name": "a <b>processor</b>",
        "threads": 1,
        "matmul_flops_per_s": {"float32": 100e9},
        "triad_bytes_per_s": 10e9,
        "exp2_per_s": 2e9,
        "cache_bytes": 1,
        "verdict": ["shared"],
    }
}


def record(implementation: str, seqlen: int, moved: int | None, **keys: Any) -> Record:
    made = make_record(implementation, seqlen, latency_ms=10.0, **keys)
    made.flops = Flops(useful=seqlen * 100_000, exponentials=4_000_000)
    made.traffic = Traffic(operand_bytes=moved, compulsory_bytes=1_000)
    made.provenance = Provenance(semantics="softmax")
    return made


def points_of(line: Line2D) -> list[tuple[float, float]]:
    return [(x, y) for x, y in np.asarray(line.get_xydata(), dtype=float).tolist()]


def report_of(*records: Record) -> Report:
    return build_report([make_run(records, ceilings=CEILINGS)])


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(
        record("naive", 512, 50_000_000),
        record("naive", 1024, 80_000_000),
        record("sdpa", 1024, 2_000_000),
        record("naive", 1024, 80_000_000, mode="fwd_bwd"),
    )


def test_a_row_for_the_longest_length_of_each_curve(report: Report) -> None:
    (table,) = roofline_tables(report)
    assert table.title == "a <b>processor</b>, float32"
    titles = [title for title, _ in table.columns]
    rows = [dict(zip(titles, row, strict=True)) for row in table.rows]
    assert [(row["Implementation"], row["Length"]) for row in rows] == [
        *(("naive", "1k"), ("sdpa", "1k"), ("naive", "1k"))
    ]
    assert rows[0] == {
        "Cases": "forward",
        "Implementation": "naive",
        "Length": "1k",
        "Intensity": "1.3",
        "Bytes": "operand",
        "FLOP/s": "10.2 G",
        "Latency": "10.0 ms",
        "Matmul": "1.02 ms",
        "Memory": "8.00 ms",
        "Exp2": "2.00 ms",
        "Limit": "memory",
        "Reached": "80 %",
    }
    assert rows[1]["Limit"] == "exp2"
    assert table.note == (
        "At most products in float32 100 GFLOP/s, memory 9.31 GiB/s, exp2 2.00 G/s, 1 thread. "
        "The ceilings are shared."
    )


def test_points_and_ceilings_of_the_plot(report: Report) -> None:
    (roofline,), book = report.rooflines, StyleBook(report.series)
    figure = roofline_figure(roofline, book)
    forward, both = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["forward", "forward + backward"]
    lines = {str(line.get_label()): line for line in forward.lines}
    assert set(lines) == {"ceiling memory", "ceiling products", "ceiling exp2", "point naive", "point sdpa"}
    flops = 1024 * 100_000
    naive, sdpa = lines["point naive"], lines["point sdpa"]
    assert points_of(naive) == [pytest.approx((flops / 80e6, flops / 10e-3))]
    assert points_of(sdpa) == [pytest.approx((flops / 2e6, flops / 10e-3))]
    for line, label in ((naive, "naive"), (sdpa, "sdpa")):
        assert same_color(line.get_color(), hex_color(book[label].color))
        assert line.get_marker() == book[label].marker
    # Memory's slope ends where products become the limit: 10 FLOPs a byte.
    (left, low), ridge = points_of(lines["ceiling memory"])
    assert ridge == pytest.approx((10.0, 100e9))
    assert low == pytest.approx(left * 10e9)
    assert [y for _, y in points_of(lines["ceiling products"])] == [100e9, 100e9]
    # An exponential is one of 2 · (64 + 64) FLOPs forward.
    assert [y for _, y in points_of(lines["ceiling exp2"])] == pytest.approx([2e9 * 2 * 128] * 2)
    assert {str(line.get_label()) for line in both.lines} == {
        *("ceiling memory", "ceiling products", "point naive")
    }
    for axes in figure.axes:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        for line in axes.lines:
            low, high = axes.get_ylim()
            assert line.get_label() == "ceiling memory" or all(low <= y <= high for _, y in points_of(line))
        assert all(text.get_text() for text in axes.get_xticklabels())
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == [
        "memory, 9.31 GiB/s",
        "products, 100 GFLOP/s",
        "exp2, 512 GFLOP/s forward",
        "naive",
        "sdpa",
    ]


def test_the_page_has_a_drawing_for_each_mode_and_a_legend(report: Report) -> None:
    (roofline,), book = report.rooflines, StyleBook(report.series)
    panels, entries = roofline_panels(roofline, book)
    assert [title for title, _ in panels] == ["forward", "forward + backward"]
    assert [label for _, label in entries][-2:] == ["naive", "sdpa"]
    # A line of axes would be clipped to them.
    assert all(handle.axes is None for handle, _ in entries)
    section = html_report(report).split('<section id="roofline">')[1].split("</section>")[0]
    assert section.count("<figcaption>") == 2
    assert section.count("<svg") == len(entries) + 2
    assert section.count("<span>products, 100 GFLOP/s</span>") == 1


def test_without_bytes_there_is_a_row_and_no_plot() -> None:
    report = report_of(record("naive", 1024, None))
    assert roofline_figure(report.rooflines[0], StyleBook(report.series)) is None
    (table,) = roofline_tables(report)
    assert "Intensity" not in [title for title, _ in table.columns]
    page = html_report(report)
    assert 'id="roofline"' in page
    assert "roofline-0" not in page


def test_widths_that_differ_have_no_rate_of_exponentials() -> None:
    report = report_of(
        record("naive", 1024, 80_000_000), record("naive", 1024, 80_000_000, head_dim=128, head_dim_v=128)
    )
    figure = roofline_figure(report.rooflines[0], StyleBook(report.series))
    assert not any(line.get_label() == "ceiling exp2" for axes in figure.axes for line in axes.lines)
    assert not any(math.isnan(x) for axes in figure.axes for line in axes.lines for x, _ in points_of(line))


def test_every_form_of_a_report_has_it_where_ceilings_were_measured(report: Report, tmp_path) -> None:
    page, short = html_report(report), markdown_report(report)
    assert 'href="#roofline"' in page
    assert "a &lt;b&gt;processor&lt;/b&gt;, float32" in page
    assert "<b>processor</b>" not in page
    assert f"## {TITLE}" in short
    without = build_report([make_run([record("naive", 1024, 80_000_000)])])
    assert TITLE not in html_report(without)
    assert TITLE not in markdown_report(without)
    run = make_run([record("naive", 1024, 80_000_000)], ceilings=CEILINGS)
    files = {path.name for path in write_report([run], tmp_path, ("svg", "png"))}
    assert {"roofline.svg", "roofline.png"} <= files


def test_a_long_table_says_what_it_leaves_out() -> None:
    many = [record("naive", 1024, 80_000_000, batch=batch) for batch in range(1, 71)]
    (table,) = roofline_tables(report_of(*many))
    assert len(table.rows) == 60
    assert table.note.endswith("10 more curves are left out here.")
