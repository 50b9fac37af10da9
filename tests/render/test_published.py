"""Published numbers in a report: a table, hollow markers, and nothing where nothing matches."""

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import same_color

from attnbench.analysis.report import Report, build_report
from attnbench.render.html import html_report
from attnbench.render.markdown import markdown_report
from attnbench.render.plots import legend_entries, metric_figure
from attnbench.render.published_table import TITLE, published_tables
from attnbench.render.styles import StyleBook, hex_color
from tests.analysis.synthetic import make_record, make_run

FORM: dict[str, Any] = {
    "num_heads": 64,
    "num_kv_heads": 8,
    "head_dim": 128,
    "head_dim_v": 128,
    "dtype": "bfloat16",
    "device": "cuda",
}
CUDNN_MS = {2048: 0.142, 4096: 0.465, 8192: 1.708}


def report_of(gpu: str = "NVIDIA H200") -> Report:
    records = [
        make_record(name, n, latency_ms=factor * ms, **FORM)
        for name, factor in (("sdpa", 1.25), ("triton-flash", 2.0))
        for n, ms in CUDNN_MS.items()
    ]
    return build_report([make_run(records, environment={"gpus": [{"name": gpu}]})])


def test_the_table_has_a_row_for_each_pair() -> None:
    (table,) = published_tables(report_of())
    assert table.title.endswith("H200 SXM 141 GB, forward, causal, bfloat16, 64 × 128")
    assert [row[0] for row in table.rows] == ["sdpa", "triton-flash"]
    sdpa = dict(zip([title for title, _ in table.columns], table.rows[0], strict=True))
    assert sdpa == {
        "Measured": "sdpa",
        "Published": "cuDNN",
        "Lengths": "2k, 4k, 8k",
        "At": "8k",
        "measured": "2.13 ms",
        "published": "1.71 ms",
        "Ratio there": "1.2",
        "over all lengths": "1.2",
    }
    assert table.note.startswith("From files in a repository. ")


def test_html_and_markdown_show_it_only_where_something_matches() -> None:
    fitting, other = report_of(), report_of("NVIDIA L4")
    assert 'id="published"' in html_report(fitting)
    assert 'href="#published"' in html_report(fitting)
    assert f"## {TITLE}" in markdown_report(fitting)
    assert 'id="published"' not in html_report(other)
    assert TITLE not in html_report(other)
    assert TITLE not in markdown_report(other)


def test_published_points_are_hollow_and_in_the_legend() -> None:
    report = report_of()
    panels = report.metrics[0].drawn
    book = StyleBook(report.series)
    (axes,) = metric_figure(panels, book, "Latency").axes
    (line,) = [line for line in axes.lines if str(line.get_label()).startswith("published")]
    drawn = np.asarray(line.get_xydata(), dtype=float)
    assert dict(drawn.tolist()) == pytest.approx(CUDNN_MS)
    assert line.get_fillstyle() == "none"
    assert line.get_linestyle() == "None"
    assert same_color(line.get_color(), hex_color("muted"))
    low, high = axes.get_ylim()
    assert low < min(CUDNN_MS.values()) < max(CUDNN_MS.values()) < high
    handles = {label: handle for handle, label in legend_entries(panels, book)}
    assert handles["published: cuDNN"].get_marker() == line.get_marker()
