"""Peaks of long cases are those that fake tensors show, and stated only where a shorter case bears it out."""

from pathlib import Path
from typing import Any

import pytest

from attnbench.measure import prediction
from attnbench.measure.memory import Predicted, predict_counts
from attnbench.measure.pipeline import measure_case
from attnbench.measure.prediction import predict_peak
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

WINDOW = {"name": "sliding-window", "window_size": 40}
FORM: dict[str, Any] = {"seqlen_q": 700, "num_heads": 2, "head_dim": 16}
CASES = [
    Case(implementation=name, mode=mode, mask=mask, dtype=dtype, **FORM)
    for name, mask in (
        ("sliding-window", WINDOW),
        ("linear", {}),
        ("linear", {"name": "full"}),
        ("naive", {}),
    )
    for mode in ("fwd", "fwd_bwd")
    for dtype in ("float32", "float16")
]


@pytest.fixture
def counts_little(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Count 128 tokens at most; return the cases that were counted."""
    counted: list[Case] = []

    def noted(case: Case) -> Any:
        counted.append(case)
        return predict_counts(case)

    monkeypatch.setattr(prediction, "LONGEST_COUNTED", 128)
    monkeypatch.setattr(prediction, "TRIAL_SEQLEN", 96)
    monkeypatch.setattr(prediction, "predict_counts", noted)
    return counted


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.case_id)
def test_a_long_peak_is_stated_to_the_byte(case: Case, counts_little: list[Case]) -> None:
    counts = predict_counts(case)
    expected = Predicted(counts.call_peak_bytes, counts.peak_bytes, "closed-form")
    assert predict_peak(case) == expected
    assert [one.seqlen_q for one in counts_little] == [96 + 700 % 96]


def test_short_cases_and_others_are_counted(counts_little: list[Case]) -> None:
    cases = [
        Case(implementation="linear", **{**FORM, "seqlen_q": 128}),
        Case(implementation="linear", **FORM, query_start=3),
        Case(implementation="linear", **FORM, seqlen_k=900),
        Case(implementation="triton-flash", **FORM, device="cuda"),
    ]
    for case in cases:
        assert predict_peak(case).backend == "fake-tensors"
    assert counts_little == cases


WRONG = '''"""Attention that states its peak wrong."""

import dataclasses

from attnbench.contract.discovery import get_implementation

NAIVE = get_implementation("naive")


def cost(problem):
    found = NAIVE.cost(problem)
    return dataclasses.replace(found, peak_bytes=found.peak_bytes + 1)


IMPLEMENTATION = dataclasses.replace(NAIVE, name="wrong", cost=cost)
'''


def test_a_closed_form_that_a_shorter_case_belies_is_not_taken(
    counts_little: list[Case], tmp_path: Path
) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    case = Case(implementation=str(path), **FORM)
    counts = predict_counts(case)
    assert predict_peak(case) == Predicted(counts.call_peak_bytes, counts.peak_bytes, "fake-tensors")
    assert [one.seqlen_q for one in counts_little] == [96 + 700 % 96, 700]


@pytest.mark.parametrize("name", ["sliding-window", "linear"])
def test_the_record_says_where_the_prediction_comes_from(name: str, counts_little: list[Case]) -> None:
    settings = MeasureSettings(metrics=("memory", "agreement"), reference_rows=32)
    for seqlen, backend in ((128, "fake-tensors"), (700, "closed-form")):
        form = {**FORM, "seqlen_q": seqlen, "mask": WINDOW if name == "sliding-window" else {}}
        record = measure_case(Case(implementation=name, mode="fwd_bwd", **form), settings)
        assert record.status == "ok"
        assert record.memory.predicted_peak_backend == backend
        assert record.memory.predicted_peak_bytes == record.memory.peak_bytes
