from typing import Any

import pytest

from attnbench.analysis.metrics import FLOPS_SHARE, LATENCY_SHARE, MEMORY_SHARE, METRICS, SHARES, STATE_MEMORY
from attnbench.analysis.rows import rows_of
from attnbench.analysis.series import panels_of
from attnbench.analysis.shares import steepest
from attnbench.analysis.summary import summarize
from tests.analysis.synthetic import make_record, make_run, quick_run
from tests.analysis.synthetic_models import SEQLENS, SLOPES, share_of, transformers_run

MODEL: dict[str, Any] = {"level": "model", "preset": "small-decoder"}


def rows(*records):
    return rows_of({"run": make_run(records)})


@pytest.fixture(scope="module")
def transformers():
    return rows_of({"run": transformers_run()})


def test_every_level_architecture_and_mode_has_a_panel_of_each_share(transformers):
    for metric in SHARES:
        panels = panels_of(transformers, metric)
        assert len(panels) == len({panel.title for panel in panels}) == 2 * (3 + 2 + 3)
        for panel in panels:
            assert [series.label for series in panel.series] == list(SLOPES)
            assert all(len(series.measured) == len(SEQLENS) for series in panel.series)
        naive = panels[0].series[0]
        factor = {LATENCY_SHARE: 1.0, MEMORY_SHARE: 0.5, FLOPS_SHARE: 1.0}[metric]
        assert naive.points[-1].value == factor * share_of(1024, 2.0)


def test_a_share_of_nothing_is_0_and_not_absent(transformers):
    points = [point for panel in panels_of(transformers, FLOPS_SHARE) for point in panel.series[0].points]
    assert {point.value for point in points if point.seqlen == 128} == {0.0}


def test_titles_name_preset_and_architecture(transformers):
    titles = [panel.title for panel in panels_of(transformers, LATENCY_SHARE)]
    assert "model bert-base, encoder-only, forward, full" in titles
    assert "block transformer-base, encoder-decoder, decode, causal" in titles


def test_one_preset_as_two_architectures_shares_no_panel():
    kinds = ("decoder-only", "encoder-only")
    records = [make_record(latency_ms=1.0, architecture=kind, **MODEL) for kind in (*kinds, None)]
    panels = panels_of(rows(*records), LATENCY_SHARE)
    assert panels == []
    latency = panels_of(rows(*records), METRICS[0])
    assert [panel.title for panel in latency] == list(kinds)
    assert [len(panel.series[0].points) for panel in latency] == [2, 1], "the preset's own is decoder-only"


def test_the_architecture_of_an_older_record_is_not_guessed():
    (row,) = rows(make_record(level="model", preset="from-another-version"))
    assert row.architecture == ""


def test_where_shares_were_not_asked_for_nothing_is_said_of_them():
    every = rows_of({"run": quick_run()})
    assert [panels_of(every, metric) for metric in (*SHARES, STATE_MEMORY)] == [[], [], [], []]
    assert summarize(every).shares == ()
    assert steepest(()) is None


def test_a_share_that_could_not_be_had_is_named_with_its_reason():
    reason = "interpreted on a CPU"
    kernel = make_record(
        "triton-flash", shares=(None, 0.5, 0.5), unavailable={"share.latency_fraction": reason}, **MODEL
    )
    naive = make_record("naive", shares=(0.25, 0.5, 0.5), **MODEL)
    (panel,) = panels_of(rows(kernel, naive), LATENCY_SHARE)
    flash, other = panel.series
    assert [point.reason for point in flash.absent] == [reason]
    assert [point.value for point in other.measured] == [0.25]


def test_changes_run_from_the_shortest_length_to_the_longest(transformers):
    changes = [one for one in summarize(transformers).shares if one.metric is LATENCY_SHARE]
    assert len(changes) == 16 * len(SLOPES)
    naive = changes[0]
    assert (naive.label, naive.seqlen_from, naive.seqlen_to) == ("naive", 128, 1024)
    assert (naive.first, naive.last) == (share_of(128, 2.0), share_of(1024, 2.0)) == (0.2, 2 / 3)
    linear = [one for one in changes if one.label == "linear"]
    assert {(one.first, one.last) for one in linear} == {(0.5, 0.5)}


def test_the_steepest_is_of_a_whole_model_forward_even_where_others_are_steeper():
    def pair(level, last, mode="fwd"):
        keys: dict[str, Any] = {"level": level, "preset": "tiny", "mode": mode}
        return [
            make_record("naive", n, shares=(share, 0.1, 0.1), **keys)
            for n, share in ((128, 0.1), (1024, last))
        ]

    records = [*pair("block", 0.9), *pair("model", 0.6), *pair("model", 0.8, "fwd_bwd")]
    found = steepest(summarize(rows(*records)).shares)
    assert found is not None
    assert (found.facet.level, found.last) == ("model tiny", 0.6)


def test_a_share_that_nothing_speaks_against_is_named_before_a_steeper_one():
    def pair(name, last, verdict):
        return [
            make_record(
                name, n, latency_ms=1.0, shares=(share, 0.1, 0.1), verdict=verdict, **MODEL, mode="fwd"
            )
            for n, share in ((128, 0.1), (1024, last))
        ]

    noisy, calm = pair("naive", 0.9, ("noisy",)), pair("sdpa", 0.5, ("valid",))
    changes = summarize(rows(*noisy, *calm)).shares
    found = steepest(changes)
    assert found is not None
    assert (found.label, found.doubts) == ("sdpa", ())
    assert {one.doubts for one in changes if one.label == "naive"} == {("noisy",), ()}, "of the time alone"


def test_state_is_of_decoding_alone_and_its_growth_is_a_finding(transformers):
    panels = panels_of(transformers, STATE_MEMORY)
    assert [panel.facet.mode for panel in panels] == ["decode"] * 4
    growth = {
        (one.label, one.exponent) for one in summarize(transformers).growth if one.metric is STATE_MEMORY
    }
    assert growth == {("naive", 1.0), ("sdpa", 1.0), ("linear", 0.0)}
    assert {ranking.standings[0].label for ranking in summarize(transformers).state} == {"linear"}
