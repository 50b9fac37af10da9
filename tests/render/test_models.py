"""What a report of whole models shows: shares, state, and what an approximation costs."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.text import Text

from attnbench.analysis.metrics import LATENCY, LATENCY_SHARE
from attnbench.analysis.report import build_report
from attnbench.analysis.rows import rows_of
from attnbench.analysis.series import panels_of
from attnbench.render.exchange_table import exchange_tables
from attnbench.render.files import write_report
from attnbench.render.html import html_report
from attnbench.render.markdown import markdown_report
from attnbench.render.model_words import change_words, share_words
from attnbench.render.plots import metric_figure, panel_figure
from attnbench.render.share_table import share_tables
from attnbench.render.styles import StyleBook, hex_color
from attnbench.render.tables import case_table
from attnbench.render.terminal import render_summary
from attnbench.render.window_plot import window_figure
from tests.analysis.synthetic import make_record, make_run, quick_run
from tests.analysis.synthetic_models import approximation_run, transformers_run

MODEL: dict[str, Any] = {"level": "model", "preset": "small-decoder"}


@pytest.fixture(scope="module")
def transformers():
    return build_report([transformers_run()])


@pytest.fixture(scope="module")
def transformers_page(transformers):
    return html_report(transformers)


@pytest.fixture(scope="module")
def approximation():
    return build_report([approximation_run()])


def axes_of(metric, *records):
    (panel, *_) = panels_of(rows_of({"run": make_run(records)}), metric)
    (axes,) = panel_figure(panel, StyleBook(panel.series)).axes
    return axes


def test_shares_are_drawn_from_0_to_100_percent_with_every_0():
    axes = axes_of(
        LATENCY_SHARE,
        *(
            make_record("naive", n, shares=(share, 0.1, 0.1), **MODEL)
            for n, share in ((128, 0.0), (256, 0.5), (512, 1.0))
        ),
    )
    assert axes.get_yscale() == "linear"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    (curve,) = [one for one in axes.lines if one.get_label() == "curve naive"]
    assert list(curve.get_ydata()) == [0.0, 0.5, 1.0]
    assert axes.get_ylim()[0] == 0.0
    assert axes.get_ylim()[1] > 1.0
    assert "hollow: exactly 0" not in [text.get_text() for text in axes.texts]


def test_the_axes_of_decoding_say_context_and_token():
    axes = axes_of(LATENCY, make_record(latency_ms=1.0, mode="decode", seqlen_q=1))
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "context length, tokens",
        "latency of one token, median, ms",
    )
    axes = axes_of(LATENCY, make_record(latency_ms=1.0))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("sequence length, tokens", "latency, median, ms")


def test_the_page_has_panels_under_the_name_of_their_model(transformers_page):
    share = transformers_page.split('id="latency-share"')[1].split("</section>")[0]
    headings = re.findall(r'<h3 class="model">(.*?)</h3>', share)
    assert headings == [
        f"{level} {model}"
        for level in ("block", "model")
        for model in (
            "bert-base, encoder-only",
            "small-decoder, decoder-only",
            "transformer-base, encoder-decoder",
        )
    ]
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", share)
    assert len(captions) == 16
    assert captions[2:5] == ["forward, causal", "forward + backward, causal", "decode, causal"]
    assert "Share of time against context length, model small-decoder, decoder-only, decode" in share


def test_the_summary_says_how_the_share_grows(transformers, transformers_page):
    text = " ".join(re.sub(r"<[^>]+>", "", transformers_page).replace("\u00a0", " ").split())
    assert (
        "Attention with its projections is 20 % of the time at 128 tokens and 67 % at 1k for naive "
        "(model bert-base, encoder-only, forward, full)." in text
    )
    assert "of the time, 128 to 1k: naive 20 to 67 %, sdpa 30 to 60 %, linear 50 to 50 %" in text
    assert "linear keeps least state at 1k tokens of context (64.0 KiB); naive keeps 64 times" not in text
    assert "linear keeps least state at 1k tokens of context (64.0 KiB); sdpa keeps 64 times" in text
    (table,) = share_tables(transformers)
    assert [title for title, _ in table.columns] == ["Model", "Lengths", "naive", "sdpa", "linear"]
    assert len(table.rows) == 16
    assert table.rows[0] == [
        "block bert-base, encoder-only, forward, full",
        "128 to 1k",
        "20 to 67 %",
        "30 to 60 %",
        "50 to 50 %",
    ]


def test_a_share_at_fewer_lengths_than_its_neighbours_says_at_which():
    records = [make_record("naive", n, shares=(n / 1024, 0, 0), **MODEL) for n in (128, 512)]
    records += [make_record("sdpa", 512, shares=(0.25, 0, 0), **MODEL)]
    (table,) = share_tables(build_report([make_run(records)]))
    assert table.rows[0][1:] == ["128 to 512", "12 to 50 %", "25 % (512)"]


def test_who_has_no_share_of_the_time_has_no_column():
    absent = {"share.latency_fraction": "interpreted on a CPU"}
    kernel = make_record("triton-flash", shares=(None, 0.5, 0.5), unavailable=absent, **MODEL)
    (table,) = share_tables(build_report([make_run([make_record(shares=(0.5, 0, 0), **MODEL), kernel])]))
    assert [title for title, _ in table.columns] == ["Model", "Lengths", "naive"]


def test_a_share_of_a_doubtful_time_says_so():
    record = make_record(latency_ms=1.0, shares=(0.5, 0.25, 0.125), verdict=("few_samples",), **MODEL)
    said = share_words(build_report([make_run([record])]).summary.shares)
    assert said[0] == "of the time at 256: naive 50 % (take with care: few samples)"
    assert said[1] == "of the memory at 256: naive 25 %"


def test_one_length_has_one_share():
    assert change_words(0.004, 0.71) == "0.4 to 71 %"
    report = build_report([make_run([make_record(shares=(0.5, 0.25, 0.125), **MODEL)])])
    assert share_words(report.summary.shares) == [
        "of the time at 256: naive 50 %",
        "of the memory at 256: naive 25 %",
        "of the FLOPs at 256: naive 12 %",
    ]


def test_the_terminal_has_a_row_for_each_mode_of_each_model(transformers):
    text = render_summary(transformers_run())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    start = lines.index("Share of time at the longest length that most reach")
    assert lines[start + 1].split() == ["naive", "sdpa", "linear"]
    assert lines[start + 2] == "block bert-base, encoder-only"
    assert lines[start + 3].split() == ["fwd,", "full,", "1k", "67", "%", "60", "%", "50", "%"]
    assert sum(line.startswith("  decode, causal, 1k") for line in lines) == 4 * 4, "of four quantities"
    assert len(lines) < 100


def test_a_curve_with_a_mask_of_its_own_is_named_below_the_rows():
    window = {"name": "sliding-window", "window_size": 64, "causal": True}
    records = [
        make_record(name, n, latency_ms=1.0, level=level, preset=preset, mask=mask, mode=mode)
        for level in ("block", "model")
        for preset in ("small-decoder", "tiny")
        for mode in ("fwd", "bwd")
        for name, mask in (("naive", {"name": "causal"}), ("sliding-window", window))
        for n in (128, 256)
    ]
    lines = render_summary(make_run(records)).splitlines()
    start = lines.index("Latency at the longest length that most reach")
    assert lines[start + 1].split() == ["naive", "sliding-window"]
    assert "sliding-window: window 64" in lines[start + 2 :]


def test_curves_that_few_have_give_way_to_the_width():
    checkpointed: dict[str, Any] = {"checkpoint": True}
    variants = [("naive", {}), ("sdpa", {}), ("linear", {}), ("sdpa", checkpointed)]
    records = [
        make_record(name, 128, latency_ms=1.0, level="model", preset=preset, mode=mode, **keys)
        for preset in ("small-decoder", "tiny", "bert-base", "transformer-base")
        for mode in ("fwd", "fwd_bwd")
        for name, keys in variants
        if mode == "fwd_bwd" or not keys
    ]
    wide = render_summary(make_run(records), 80).splitlines()
    assert wide[wide.index("Latency at the longest length that most reach") + 1].split("  ")[-1] == (
        "sdpa (checkpoint)"
    )
    narrow = render_summary(make_run(records), 55).splitlines()
    start = narrow.index("Latency at the longest length that most reach")
    assert narrow[start + 1].split() == ["naive", "sdpa", "linear"]
    assert "(sdpa (checkpoint): in the report)" in narrow
    assert max(map(len, narrow)) <= 55


def test_what_the_approximation_costs_is_a_table_in_every_form(approximation):
    (table,) = exchange_tables(approximation)
    assert table.title == "model small-decoder, decoder-only, forward"
    assert [title for title, _ in table.columns] == [
        "Attention",
        "Length",
        "Perplexity",
        "Loss",
        "Added loss",
        "Latency",
        "Peak memory",
    ]
    row = ["sliding-window (window 64)", "1k", "3.080", "1.125", "+0.125", "5.12 ms", "–"]
    assert row in table.rows
    page = html_report(approximation)
    section = page.split('id="exchanges"')[1].split("</section>")[0]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in section.split("<tr>")[1:]]
    assert row in cells
    assert "| " + " | ".join(row) + " |" in markdown_report(approximation)
    said = render_summary(approximation_run())
    assert row[:-1] in [re.split(r"  +", line) for line in said.splitlines()]
    assert max(map(len, said.splitlines())) <= 80
    sentence = "perplexity 2.718 with exact attention at 1k tokens, 3.080 with sliding-window (window 64)"
    for text in (said, markdown_report(approximation)):
        assert sentence in " ".join(text.split()).replace("\\", "")


def test_perplexity_by_window_is_drawn_in_the_page_and_as_a_picture(approximation, tmp_path):
    (exchange,) = approximation.summary.exchanges
    figure = window_figure(exchange)
    assert figure is not None
    (axes,) = figure.axes
    short, long = (
        next(one for one in axes.lines if one.get_label() == f"curve sliding-window {n}") for n in (256, 1024)
    )
    points = short.get_xydata()
    assert dict(points.tolist()) == pytest.approx({16: math.exp(1.5), 64: math.exp(1.125)})
    assert short.get_color() == long.get_color() == hex_color("green")
    assert short.get_linestyle() != long.get_linestyle()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [
        "sliding-window at 256",
        "exact (sdpa) at 256",
        "sliding-window at 1k",
        "exact (sdpa) at 1k",
    ]
    assert 'aria-label="Perplexity by window"' in html_report(approximation)
    written = write_report([approximation_run()], tmp_path, ["svg", "md"])
    assert "plots/perplexity.svg" in [path.relative_to(tmp_path).as_posix() for path in written]
    assert "![Perplexity by window](plots/perplexity.svg)" in (tmp_path / "report.md").read_text()


def test_other_reports_have_neither_table_nor_empty_sections_of_these():
    page = html_report(build_report([quick_run()]))
    for absent in ('id="exchanges"', 'id="latency-share"', 'id="state-memory"', 'class="windows"'):
        assert absent not in page
    assert "Share of time at" not in render_summary(quick_run())


def test_the_table_of_cases_names_architecture_state_and_shares(transformers):
    table = case_table(transformers)
    titles = [column.title for column in table.columns]
    for title in ("Level", "Architecture", "Mode", "State", "Share of time", "of memory", "of FLOPs"):
        assert title in titles
    decode = next(row for row in table.rows if row[titles.index("Mode")] == "decode")
    assert decode[titles.index("State")] == "512 KiB"
    assert decode[titles.index("Share of time")] == "20 %"


def test_the_optimisers_step_stands_beside_the_pass_that_it_follows():
    record = make_record(latency_ms=9.0, mode="fwd_bwd", step_ms=2.5, **MODEL)
    table = case_table(build_report([make_run([record])]))
    titles = [column.title for column in table.columns]
    (row,) = table.rows
    assert row[titles.index("Latency")] == "9.00 ms"
    assert row[titles.index("Optimiser step")] == "2.50 ms"
    assert row[titles.index("Optimiser step") + 1] == "1.00 MiB"
    assert "Optimiser step" not in [
        column.title for column in case_table(build_report([quick_run()])).columns
    ]


def test_a_note_names_who_computed_the_cross_attention():
    record = make_record("linear", latency_ms=1.0, level="block", preset="transformer-base")
    assert record.provenance is not None
    record.provenance.cross_implementation = "sdpa"
    (row,) = case_table(build_report([make_run([record])])).rows
    assert row[-1] == "cross-attention by sdpa"


def test_titles_of_neighbours_do_not_meet():
    record = make_record(shares=(0.5, 0.5, 0.5), level="block", preset="transformer-base", mode="fwd_bwd")
    (panel,) = panels_of(rows_of({"run": make_run([record])}), LATENCY_SHARE)
    long = replace(panel, title="block transformer-base, encoder-decoder, forward + backward, window 64")
    figure = metric_figure([long] * 4, StyleBook(panel.series), "Share of time")
    figure.draw_without_rendering()
    left, right, *_ = figure.axes
    titles = [text for text in left.findobj(Text) if " ".join(text.get_text().split()) == long.title]
    assert len(titles) == 1
    assert titles[0].get_window_extent().x1 < right.get_tightbbox().x0
