"""What a suite would cost is known without a workload, and the closed forms are what a count finds."""

from typing import Any

import pytest

from attnbench.measure import forecast as module
from attnbench.measure.forecast import Forecast, forecast
from attnbench.measure.memory import predict_counts
from attnbench.measure.workload import Workload, build_workload
from attnbench.plan.case import Case

WINDOW = {"name": "sliding-window", "window_size": 9}
FULL = {"name": "full"}
DTYPES: tuple[tuple[int, dict[str, Any]], ...] = ((96, {}), (33, {"dtype": "float16"}))
IN_CLOSED_FORM = [
    *(
        Case(implementation=name, seqlen_q=seqlen, num_heads=2, head_dim=16, mask=mask, **dtype)
        for name in ("naive", "sdpa", "linear")
        for mask in (FULL, {})
        for seqlen, dtype in DTYPES
    ),
    *(
        Case(
            implementation=name, mode="fwd_bwd", seqlen_q=seqlen, num_heads=2, head_dim=16, mask=mask, **rest
        )
        for name in ("naive", "sdpa")
        for mask, rest in ((FULL, {"dtype": "float16"}), ({}, {"scale": 1.0}), ({}, {"batch": 3}))
        for seqlen in (5, 96)
    ),
    *(
        Case(
            implementation="naive",
            mode="fwd_bwd",
            seqlen_q=6,
            seqlen_k=keys,
            head_dim=12,
            head_dim_v=value_dim,
        )
        for keys in (6, 50)
        for value_dim in (4, 40)
    ),
    *(
        Case(
            implementation=name,
            mode=mode,
            seqlen_q=1 if mode == "decode" else 40,
            seqlen_k=40,
            batch=2,
            num_heads=6,
            num_kv_heads=kv_heads,
            head_dim=16,
            mask=mask,
        )
        for name in ("naive", "sdpa")
        for mode in ("fwd", "fwd_bwd", "decode")
        for mask in (FULL, {})
        for kv_heads in (2, 1)
    ),
    *(
        Case(
            implementation=name,
            mode=mode,
            seqlen_q=seqlen,
            batch=batch,
            num_heads=4,
            num_kv_heads=kv_heads,
            head_dim=16,
            head_dim_v=value_dim,
            mask=mask,
            dtype=dtype,  # type: ignore[arg-type]  # one of the words below
        )
        for name, mask in (("sliding-window", WINDOW), ("linear", {}), ("linear", FULL))
        for mode in ("bwd", "fwd_bwd")
        for seqlen, batch, kv_heads, value_dim, dtype in (
            (1, 1, 4, 16, "float32"),
            (33, 2, 2, 8, "float32"),
            (300, 1, 2, 40, "float16"),
            (300, 2, 4, 8, "float32"),
        )
    ),
    Case(implementation="naive", seqlen_q=20, seqlen_k=64, batch=2, num_heads=3, head_dim=8, head_dim_v=24),
    Case(implementation="sliding-window", seqlen_q=64, num_heads=2, head_dim=16, mask=WINDOW),
    *(
        Case(
            implementation=name,
            mode="decode",
            seqlen_q=1,
            seqlen_k=40,
            batch=2,
            num_heads=2,
            head_dim=16,
            mask=WINDOW if name == "sliding-window" else {},
        )
        for name in ("naive", "sdpa", "linear", "sliding-window")
    ),
]


@pytest.mark.parametrize("case", IN_CLOSED_FORM, ids=lambda case: case.case_id)
def test_the_stated_peak_is_what_fake_tensors_show(case, monkeypatch):
    counted = predict_counts(case)

    def refuse(*given, **named):
        raise AssertionError("no workload is needed")

    monkeypatch.setattr(module, "build_workload", refuse)
    found = forecast(case)
    assert found.predicted_peak_bytes == counted.peak_bytes
    assert found.flops > 0
    assert found.compulsory_bytes > 0
    assert found.unavailable == {}


def test_what_states_no_peak_is_counted_once_for_what_a_count_cannot_tell_apart(monkeypatch):
    built: list[Case] = []

    def build(case: Case, **form: Any) -> Workload:
        built.append(case)
        return build_workload(case, **form)

    monkeypatch.setattr(module, "build_workload", build)
    module._counted.cache_clear()
    form: dict[str, Any] = {
        "implementation": "naive",
        "seqlen_q": 24,
        "num_heads": 1,
        "head_dim": 8,
        "mode": "bwd",
    }
    cases = [
        Case(**form, **changes) for changes in ({}, {"cache": "warm"}, {"threads": 2}, {"compile": True})
    ]
    found = [forecast(case) for case in cases]
    assert len(built) == 1
    assert all(each == found[0] for each in found)
    assert found[0].predicted_peak_bytes == predict_counts(cases[0]).peak_bytes
    forecast(Case(**form, batch=2))
    assert len(built) == 2


STATES_ITS_FLOPS = """
from dataclasses import replace
from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import AttentionOutput

NAIVE = get_implementation("naive")

def attention(q, k, v, *, problem, params=None):
    return AttentionOutput(q * v)

def cost(problem):
    return replace(NAIVE.cost(problem), executed_flops=123, operand_bytes=None, peak_bytes=None)

IMPLEMENTATION = replace(NAIVE, name="stating", attention=attention, cost=cost)
"""


def test_a_figure_that_is_stated_has_no_reason_to_be_missing(tmp_path):
    """No operator of it has FLOPs that a counter knows, but it says how many there are."""
    (tmp_path / "stating.py").write_text(STATES_ITS_FLOPS, encoding="utf-8")
    found = forecast(Case(implementation=str(tmp_path / "stating.py"), seqlen_q=16))
    assert found.executed_flops == 123
    assert found.predicted_peak_bytes is not None
    assert found.operand_bytes is not None
    assert found.unavailable == {}


def test_a_refused_case_has_reasons_and_no_figures():
    found = forecast(Case(implementation="sliding-window", seqlen_q=8, mode="fwd", mask=FULL))
    assert found == Forecast(unsupported=found.unsupported)
    assert found.unsupported


def test_a_module_is_counted():
    found = forecast(Case(implementation="naive", level="block", preset="tiny", seqlen_q=16))
    assert found.flops is None
    assert found.executed_flops > 0
    assert found.predicted_peak_bytes > 0
