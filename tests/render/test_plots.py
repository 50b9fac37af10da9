import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from attnbench.analysis.metrics import BUDGET_SHARE, ERROR, LATENCY, PEAK_MEMORY, RELATIVE_ERROR
from attnbench.analysis.rows import rows_of
from attnbench.analysis.series import panels_of
from attnbench.render.axes import format_bytes_tick, padded_range
from attnbench.render.panels import draw_panel
from attnbench.render.plots import legend_entries, metric_figure, panel_figure, png_bytes, svg_text
from attnbench.render.styles import StyleBook, hex_color
from tests.analysis.synthetic import make_record, make_run, quick_run

PNG = b"\x89PNG\r\n\x1a\n"


def panels(metric, *records):
    return panels_of(rows_of({"run": make_run(records) if records else quick_run()}), metric)


def book_of(drawn):
    return StyleBook(series for panel in drawn for series in panel.series)


def drawn_axes(metric, *records):
    (panel, *_) = drawn = panels(metric, *records)
    (axes,) = panel_figure(panel, book_of(drawn)).axes
    return axes


def line(axes, label):
    (found,) = [one for one in axes.lines if one.get_label() == label]
    return found


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_a_curve_holds_every_point_in_the_colour_and_marker_of_its_implementation():
    axes = drawn_axes(LATENCY)
    curve = line(axes, "curve naive")
    assert list(curve.get_xdata()) == [256, 512, 1024, 2048, 4096]
    assert list(curve.get_ydata()) == pytest.approx([1.9, 7.6, 30.4, 121.6, 486.4])
    assert (curve.get_color(), curve.get_marker()) == (hex_color("grey"), "o")
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_axes_are_labelled_with_units_and_ticks_at_the_lengths():
    axes = drawn_axes(LATENCY)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["256", "512", "1k", "2k", "4k"]
    assert axes.get_ylabel() == "latency, median, ms"
    assert axes.get_xlabel() == "sequence length, tokens"
    memory = drawn_axes(PEAK_MEMORY)
    assert "64 MiB" in [label.get_text() for label in memory.get_yticklabels()]


def test_intervals_are_bands():
    axes = drawn_axes(
        LATENCY, make_record(latency_ms=10.0, noise=0.2), make_record(seqlen=512, latency_ms=20.0)
    )
    (band, bars) = axes.collections
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(8.0)
    assert len(bars.get_segments()) == 2
    assert texts(axes) == []


def test_a_band_of_one_launch_says_so():
    axes = drawn_axes(
        LATENCY, make_record("a", latency_ms=10.0), make_record("b", latency_ms=9.0, launches=1)
    )
    assert "interval of one launch: b" in texts(axes)


def test_a_failed_case_is_a_cross_at_its_length_and_hollow_where_it_was_predicted():
    fine = make_record("naive", 256, peak_bytes=2**20)
    failed = make_record("naive", 512, status="oom", reason="too large", predicted_peak_bytes=2**22)
    axes = drawn_axes(PEAK_MEMORY, fine, failed)
    cross = line(axes, "failed naive: oom")
    assert list(cross.get_xdata()) == [512]
    assert cross.get_marker() == "x"
    assert "naive: oom" in texts(axes)
    predicted = line(axes, "predicted naive")
    assert list(predicted.get_ydata()) == [2**20, 2**22]
    assert axes.get_ylim()[1] > 2**22
    assert "predicted, did not run" in [
        label
        for _, label in legend_entries(
            panels(PEAK_MEMORY, fine, failed), book_of(panels(PEAK_MEMORY, fine, failed))
        )
    ]


def test_a_single_point_is_visible():
    axes = drawn_axes(LATENCY, make_record(latency_ms=3.0))
    assert line(axes, "curve naive").get_marker() == "o"
    low, high = axes.get_ylim()
    assert low < 3.0 < high
    assert axes.get_xlim()[0] < 256 < axes.get_xlim()[1]


def test_an_exact_result_is_hollow_on_the_lower_edge():
    axes = drawn_axes(ERROR, make_record("a", error=0.0), make_record("b", error=1e-7))
    zeros = line(axes, "zeros a")
    assert list(zeros.get_xdata()) == [256]
    assert zeros.get_fillstyle() == "none"
    assert "hollow: exactly 0" in texts(axes)


def test_the_error_budget_is_drawn_in_the_same_colour():
    axes = drawn_axes(ERROR, make_record("naive", error=1e-7))
    budget = [one for one in axes.lines if one.get_linestyle() == ":"]
    assert [list(one.get_ydata()) for one in budget] == [[4e-6]]
    assert budget[0].get_color() == hex_color("grey")


def test_error_against_length_is_a_curve_beside_its_budget():
    records = [make_record("naive", n, error=n * 1e-9) for n in (256, 512, 1024)]
    relative = drawn_axes(RELATIVE_ERROR, *records)
    assert list(line(relative, "curve naive").get_xdata()) == [256, 512, 1024]
    assert list(line(relative, "curve naive").get_ydata()) == pytest.approx(
        [n * 1e-9 / 3 for n in (256, 512, 1024)]
    )
    (budget,) = [one for one in relative.lines if one.get_linestyle() == ":"]
    assert list(budget.get_ydata()) == [1e-5] * 3
    share = drawn_axes(BUDGET_SHARE, *records)
    assert list(line(share, "curve naive").get_ydata()) == pytest.approx([0.064, 0.128, 0.256])
    assert [label.get_text() for label in share.get_yticklabels()][-1] == "100 %"


def test_series_without_values_are_named_and_everything_still_draws():
    """All NaN, all zero or empty next to a good series (matplotlib raises on some of these with log axes)."""
    records = [make_record("good", n, latency_ms=float(n)) for n in (256, 512)]
    records += [make_record("empty", n, unavailable={"latency": "interpreted"}) for n in (256, 512)]
    records += [make_record("broken", n, latency_ms=float("nan")) for n in (256, 512)]
    records += [make_record("failed", n, status="error", reason="boom") for n in (256, 512)]
    drawn = panels(LATENCY, *records)
    book = book_of(drawn)
    labels = [label for _, label in legend_entries(drawn, book)]
    assert labels[:4] == ["good", "empty: no data", "broken: no data", "failed: no data"]
    figure = metric_figure(drawn, book, "Latency")
    assert "no value: empty, broken" in texts(figure.axes[0])
    assert png_bytes(figure).startswith(PNG)


@pytest.mark.parametrize("metric", [LATENCY, PEAK_MEMORY, ERROR], ids=lambda metric: metric.key)
def test_a_panel_in_which_nothing_has_a_value_draws_and_says_so(metric):
    axes = drawn_axes(metric, make_record(status="error", reason="boom"))
    assert "no value at any length" in texts(axes)
    axes.figure.draw_without_rendering()


def test_curves_that_lie_on_one_another_are_both_visible():
    axes = drawn_axes(PEAK_MEMORY, make_record("a", peak_bytes=100), make_record("b", peak_bytes=100))
    under, over = line(axes, "curve a"), line(axes, "curve b")
    assert under.get_linewidth() > over.get_linewidth() + 1
    assert under.get_markersize() > over.get_markersize() + 1


def test_the_legend_is_beside_the_axes_and_complete():
    drawn = panels(LATENCY, *(make_record(f"kernel-{place}", latency_ms=place + 1.0) for place in range(60)))
    figure = metric_figure(drawn, book_of(drawn), "Latency")
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 60
    figure.draw_without_rendering()
    box, axes_box = legend.get_window_extent(), figure.axes[0].get_window_extent()
    assert box.x0 >= axes_box.x1
    assert box.y0 >= 0


def test_hostile_names_are_drawn_as_they_are():
    names = ["_hidden", "$x^{", "<script>alert(1)</script>", "中文🙂", "quote\"'&amp;", "x" * 300]
    drawn = panels(LATENCY, *(make_record(name, latency_ms=1.0 + place) for place, name in enumerate(names)))
    figure = metric_figure(drawn, book_of(drawn), "Latency")
    document = svg_text(figure)
    written = "".join(ET.fromstring(document).itertext())
    for name in names[:5]:
        assert name in written
    assert "<script>" not in document
    assert png_bytes(figure).startswith(PNG)


def test_pictures_need_no_display_and_leave_the_backend_alone(tmp_path):
    """With no display and an interactive backend asked for."""
    code = """
import matplotlib
chosen = matplotlib.rcParams._get("backend")
settings = dict(matplotlib.rcParams)
from attnbench.render.files import write_report
from tests.analysis.synthetic import make_record, make_run
from pathlib import Path
import sys
write_report([make_run([make_record(latency_ms=1.0)])], Path(sys.argv[1]), ["png", "svg"])
assert matplotlib.rcParams._get("backend") == chosen, matplotlib.rcParams._get("backend")
assert dict(matplotlib.rcParams) == settings
assert "matplotlib.pyplot" not in sys.modules
"""
    environment = {**os.environ, "MPLBACKEND": "TkAgg"}
    environment.pop("DISPLAY", None)
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], check=True, env=environment)
    assert (tmp_path / "plots" / "latency.png").read_bytes().startswith(PNG)
    ET.parse(tmp_path / "plots" / "latency.svg")


def test_ranges_are_wide_enough_and_ticks_are_plain():
    low, high = padded_range([5.0])
    assert high / low >= 4
    low, high = padded_range([1e-8, 1e12])
    assert low < 1e-8
    assert high > 1e12
    assert [format_bytes_tick(2.0**power) for power in (0, 10, 24, 40)] == ["1 B", "1 KiB", "16 MiB", "1 TiB"]


def test_huge_ranges_have_few_ticks_and_labels_that_do_not_overlap():
    records = [make_record("a", n, peak_bytes=n**4) for n in (1, 7, 63, 64, 65, 127, 129, 1000, 2**20)]
    axes = drawn_axes(PEAK_MEMORY, *records)
    axes.figure.draw_without_rendering()
    for labels, side in ((axes.get_xticklabels(), "x"), (axes.get_yticklabels(), "y")):
        boxes = [label.get_window_extent() for label in labels]
        assert 2 <= len(boxes) <= 8
        for one, other in pairwise(boxes):
            assert getattr(one, f"{side}1") < getattr(other, f"{side}0")


def test_drawing_twice_gives_the_same_document():
    drawn = panels(LATENCY)
    book = book_of(drawn)
    assert svg_text(panel_figure(drawn[0], book)) == svg_text(panel_figure(drawn[0], book))


def test_a_panel_draws_into_axes_of_any_figure():
    from matplotlib.figure import Figure

    drawn = panels(LATENCY)
    axes = Figure().add_subplot()
    draw_panel(axes, drawn[0], book_of(drawn))
    assert line(axes, "curve sdpa").get_color() == hex_color("blue")


def test_the_length_0_is_named_above_the_axes_and_not_drawn():
    """Warnings are errors, so matplotlib has nothing to say about it either."""
    records = [make_record("naive", seqlen, peak_bytes=seqlen * 2**10) for seqlen in (0, 256, 512)]
    failed = make_record("sdpa", 0, status="error", reason="empty")
    (panel,) = drawn = panels(PEAK_MEMORY, *records, failed)
    axes = drawn_axes(PEAK_MEMORY, *records, failed)
    assert list(line(axes, "curve naive").get_xdata()) == [256, 512]
    assert "length 0: in the table, a log axis has no place for it" in texts(axes)
    assert png_bytes(metric_figure([panel], book_of(drawn), "memory")).startswith(PNG)
    alone = drawn_axes(PEAK_MEMORY, records[0])
    assert "no value at any length above 0" in texts(alone)
