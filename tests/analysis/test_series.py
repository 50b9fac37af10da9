from typing import Any

import pytest

from attnbench.analysis.facets import constants_of, facets_of
from attnbench.analysis.metrics import ERROR, LATENCY, METRICS, OPERAND_BYTES, PEAK_MEMORY, REQUESTED_BYTES
from attnbench.analysis.rows import rows_of
from attnbench.analysis.series import panels_of, series_of
from tests.analysis.synthetic import make_record, make_run, quick_run

WINDOW = {"name": "sliding-window", "window_size": 256, "causal": True}


def rows(*records, **runs):
    return rows_of({"run": make_run(records)} if records else {name: make_run(r) for name, r in runs.items()})


@pytest.mark.parametrize(
    "metric", [LATENCY, PEAK_MEMORY, OPERAND_BYTES, ERROR], ids=lambda metric: metric.key
)
def test_every_case_is_in_exactly_one_series_whatever_its_status(metric):
    every = rows_of({"run": quick_run()})
    panels = panels_of(every, metric)
    assert sum(len(series.points) for panel in panels for series in panel.series) == len(every)
    failed = sum(len(series.failed) for panel in panels for series in panel.series)
    assert failed == sum(not row.is_ok for row in every) == 9


def test_series_are_sorted_by_length_and_carry_value_interval_limit_and_floor():
    long, short = (
        make_record("naive", 512, latency_ms=4.0, error=2e-6),
        make_record("naive", 256, latency_ms=1.0),
    )
    (series,) = series_of(rows(long, short), LATENCY)
    assert [(point.seqlen, point.value, point.low, point.high) for point in series.points] == [
        (256, 1.0, 0.95, 1.05),
        (512, 4.0, 3.8, 4.2),
    ]
    (series,) = series_of(rows(long), ERROR)
    assert (series.points[0].value, series.points[0].limit) == (2e-6, 4e-6)
    (series,) = series_of(rows(make_record(operand_bytes=9, seqlen=2)), OPERAND_BYTES)
    assert series.points[0].floor == 4 * 4 * 2 * 512


def test_a_failed_case_stays_at_its_length_with_status_reason_and_prediction():
    fine = make_record("naive", 256, peak_bytes=100)
    failed = make_record("naive", 512, status="oom", reason="too large", predicted_peak_bytes=400)
    (series,) = series_of(rows(fine, failed), PEAK_MEMORY)
    (point,) = series.failed
    assert (point.seqlen, point.status, point.value, point.expected) == (512, "oom", None, 400)
    assert point.reason == "too large"
    assert [point.seqlen for point in series.measured] == [256]


def test_a_fine_case_without_the_quantity_is_absent_with_the_reason():
    (series,) = series_of(rows(make_record(unavailable={"latency": "interpreted"})), LATENCY)
    assert [point.reason for point in series.absent] == ["interpreted"]
    assert not series.failed


def test_what_is_not_comparable_is_not_in_one_panel():
    variants: list[dict[str, Any]] = [
        {},
        {"mode": "bwd"},
        {"dtype": "float16"},
        {"device": "cuda"},
        {"head_dim": 128},
        {"batch": 2},
    ]
    variants += [{"level": "block", "preset": "gpt2"}, {"inputs": "text"}, {"num_kv_heads": 2}]
    panels = panels_of(rows(*(make_record(latency_ms=1.0, **keys) for keys in variants)), LATENCY)
    assert len(panels) == len(variants)
    assert len({panel.title for panel in panels}) == len(variants)


def test_masks_share_a_panel_while_their_curves_are_few():
    few = [make_record("naive", latency_ms=1.0), make_record("naive", latency_ms=1.0, mask=WINDOW)]
    (panel,) = panels_of(rows(*few), LATENCY)
    assert panel.masks == ("causal", "window 256")
    assert [series.label for series in panel.series] == ["naive", "naive (window 256)"]
    many = [
        make_record(f"a{place}", latency_ms=1.0, mask=mask)
        for place in range(9)
        for mask in ({"name": "causal"}, WINDOW)
    ]
    assert [panel.masks for panel in panels_of(rows(*many), LATENCY)] == [("causal",), ("window 256",)]


def test_constant_tokens_are_one_shape_and_different_batches_are_several():
    tokens = [make_record("naive", n, batch=16384 // n, latency_ms=1.0) for n in (512, 1024, 2048)]
    assert [facet.shape for facet in facets_of(rows(*tokens))] == ["8 heads × 64, 16384 tokens"]
    batches = [make_record("naive", n, batch=b, latency_ms=1.0) for n in (512, 1024) for b in (1, 4)]
    assert [facet.shape for facet in facets_of(rows(*batches))] == [
        "8 heads × 64, batch 1",
        "8 heads × 64, batch 4",
    ]


def test_options_and_runs_make_curves_of_their_own():
    sizes = [make_record("linear", latency_ms=1.0, options={"chunk_size": size}) for size in (64, 128)]
    labels = [series.label for series in series_of(rows(*sizes), LATENCY)]
    assert labels == ["linear (chunk_size=64)", "linear (chunk_size=128)"]
    kept = [make_record(latency_ms=1.0, mode="fwd_bwd", checkpoint=again) for again in (False, True)]
    assert [series.label for series in series_of(rows(*kept), LATENCY)] == ["naive", "naive (checkpoint)"]
    both = rows(before=[make_record(latency_ms=1.0)], after=[make_record(latency_ms=2.0)])
    assert [series.label for series in series_of(both, LATENCY)] == ["naive (before)", "naive (after)"]


def test_only_kernels_are_listed_under_requested_bytes():
    kernel, other = (
        make_record("triton-flash", requested_bytes=5),
        make_record("naive", operand_bytes=5, unavailable={"traffic.requested_bytes": "only kernels ask"}),
    )
    (panel,) = panels_of(rows(kernel, other), REQUESTED_BYTES)
    assert [series.label for series in panel.series] == ["triton-flash"]
    assert panels_of(rows(other), REQUESTED_BYTES) == []


def test_facets_come_in_reading_order_and_constants_are_said_once():
    keys: list[dict[str, Any]] = [
        {"mode": mode, "level": level} for level in ("model", "attention") for mode in ("fwd_bwd", "fwd")
    ]
    facets = list(facets_of(rows(*(make_record(**key) for key in keys))))
    assert [(facet.level, facet.mode) for facet in facets] == [
        ("attention", "fwd"),
        ("attention", "fwd_bwd"),
        ("model", "fwd"),
        ("model", "fwd_bwd"),
    ]
    assert constants_of(facets) == {
        "architecture": "",
        "mask": "causal",
        "dtype": "float32",
        "device": "cpu",
        "shape": "8 heads × 64, batch 1",
        "extras": "",
    }


def test_windows_come_in_the_order_of_their_sizes():
    masks = [{"name": "sliding-window", "window_size": size, "causal": True} for size in (128, 16, 64)]
    records = [make_record(latency_ms=1.0, mask=mask) for mask in (*masks, {"name": "causal"})]
    assert [facet.mask for facet in facets_of(rows(*records))] == [
        "causal",
        "window 16",
        "window 64",
        "window 128",
    ]


def test_no_rows_make_no_panels():
    assert all(panels_of([], metric) == [] for metric in METRICS)


def test_titles_leave_out_what_follows_from_the_rest():
    levels = [make_record(), make_record(level="model", preset="tiny", inputs="text", num_heads=4)]
    assert [panel.title for panel in panels_of(rows(*levels), LATENCY)] == [
        "attention",
        "model tiny, decoder-only",
    ]
    heads = [make_record(num_heads=count) for count in (4, 8)]
    titles = [panel.title for panel in panels_of(rows(*heads), LATENCY)]
    assert titles == ["4 heads on 8 × 64, batch 1", "8 heads × 64, batch 1"]
