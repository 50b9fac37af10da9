import math
from typing import Any

import pytest

from attnbench.analysis.quality import is_exact, window_curves
from attnbench.analysis.rows import rows_of
from attnbench.analysis.summary import summarize
from tests.analysis.synthetic import make_record, make_run, quick_run
from tests.analysis.synthetic_models import approximation_run

TRAINED: dict[str, Any] = {"level": "model", "preset": "small-decoder", "inputs": "text"}


def exchanges_of(*records):
    return summarize(rows_of({"run": make_run(records) if records else approximation_run()})).exchanges


def test_exact_attention_comes_first_then_by_what_is_lost():
    (exchange,) = exchanges_of()
    labels = ["sdpa", "sliding-window (window 64)", "sliding-window (window 16)", "linear"]
    assert [(line.row.seqlen, line.label) for line in exchange.lines] == [
        (n, label) for n in (256, 1024) for label in labels
    ]
    assert [line.added_loss for line in exchange.at(1024)] == [0.0, 0.125, 0.5, 3.0]
    assert [line.is_exact for line in exchange.at(1024)] == [True, False, False, False]
    assert [line.row.perplexity for line in exchange.at(256)] == [
        pytest.approx(math.exp(loss)) for loss in (1.0, 1.125, 1.5, 4.0)
    ]


def test_without_the_exact_attention_at_a_length_no_difference_is_made_up():
    window = {"name": "sliding-window", "window_size": 16, "causal": True}
    exact = make_record("sdpa", 256, loss=1.0, **TRAINED)
    elsewhere = make_record("sliding-window", 512, loss=1.5, mask=window, **TRAINED)
    (exchange,) = exchanges_of(exact, elsewhere)
    assert [line.added_loss for line in exchange.lines] == [0.0, None]


def test_nothing_is_compared_where_nothing_was_exchanged_or_no_quality_is_known():
    exact = [make_record(name, loss=1.0, **TRAINED) for name in ("naive", "sdpa")]
    assert exchanges_of(*exact) == ()
    failed = make_record("linear", status="error", loss=4.0, semantics="linear-elu", **TRAINED)
    assert exchanges_of(*exact, failed) == ()
    assert summarize(rows_of({"run": quick_run()})).exchanges == ()


def test_runs_are_judged_by_their_own_exact_attention():
    def of(loss):
        return make_run(
            [
                make_record("sdpa", loss=loss, **TRAINED),
                make_record("linear", loss=4.0, semantics="linear-elu", **TRAINED),
            ]
        )

    (exchange,) = summarize(rows_of({"before": of(1.0), "after": of(2.0)})).exchanges
    added = {line.label: line.added_loss for line in exchange.lines if not line.is_exact}
    assert added == {"linear (before)": 3.0, "linear (after)": 2.0}


@pytest.mark.parametrize(
    ("semantics", "mask", "exact"),
    [
        ("softmax", {"name": "causal"}, True),
        ("softmax", {"name": "full"}, True),
        ("softmax", {"name": "sliding-window", "window_size": 8, "causal": True}, False),
        ("linear-elu", {"name": "causal"}, False),
        ("", {"name": "causal"}, False),
    ],
)
def test_exact_is_softmax_over_all_that_the_model_was_trained_to_see(semantics, mask, exact):
    (row,) = rows_of({"run": make_run([make_record(semantics=semantics, mask=mask)])})
    assert is_exact(row) is exact


def test_a_curve_of_windows_for_each_length_ends_at_the_exact_attention():
    (exchange,) = exchanges_of()
    curves = window_curves(exchange)
    assert [(one.label, one.seqlen, one.exact_implementation) for one in curves] == [
        ("sliding-window", 256, "sdpa"),
        ("sliding-window", 1024, "sdpa"),
    ]
    for one in curves:
        assert one.exact == pytest.approx(math.e)
        assert dict(one.points) == pytest.approx({16: math.exp(1.5), 64: math.exp(1.125)})


def test_one_window_makes_no_curve():
    window = {"name": "sliding-window", "window_size": 16, "causal": True}
    exact = make_record("sdpa", loss=1.0, **TRAINED)
    (exchange,) = exchanges_of(exact, make_record("sliding-window", loss=1.5, mask=window, **TRAINED))
    assert window_curves(exchange) == []
