"""Faults that public bug reports describe in benchmarks, one test each with the right value."""

import math
from typing import Any

import pytest
import torch

from attnbench.analysis.facets import facets_of
from attnbench.analysis.metrics import METRICS
from attnbench.analysis.rows import rows_of
from attnbench.analysis.series import panels_of
from attnbench.analysis.summary import summarize
from attnbench.measure.agreement import grade
from attnbench.measure.inputs import FAMILIES, make_inputs
from attnbench.measure.pipeline import measure_case
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from tests.analysis.synthetic import make_record, make_run

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("reference", "actual", "passes", "nonfinite_reference", "nonfinite"),
    [
        ([1, NAN], [1, 2], False, 1, 0),
        ([1, 2], [1, NAN], False, 0, 1),
        ([NAN], [NAN], False, 1, 1),
        ([INF], [-INF], False, 1, 1),
        ([0], [0], True, 0, 0),
    ],
    ids=["reference", "result", "both", "infinities", "zeros"],
)
@pytest.mark.parametrize("name", ["out", "dq", "lse"])
def test_b11_nan_never_passes(
    name: str,
    reference: list[float],
    actual: list[float],
    passes: bool,
    nonfinite_reference: int,
    nonfinite: int,
) -> None:
    """tracel-ai/cubecl PR 1070 and tenstorrent/tt-metal PR 42617.

    Every comparison with NaN is false, and max([1, nan]) is 1: a limit that nothing exceeds is kept. Only
    equal finite values pass, each side's others are counted, and the relative error of equal zeros is 0.
    """
    truth, got = torch.tensor(reference, dtype=torch.float64), torch.tensor(actual, dtype=torch.float32)
    graded = grade(got, truth, truth, name=name)
    assert (graded.verdict == "ok") is passes
    assert (graded.nonfinite_reference, graded.nonfinite) == (nonfinite_reference, nonfinite)
    assert (graded.rms_relative_error, graded.max_abs_error) == (0.0, 0.0)


def test_b13_default_inputs_are_standard_normal_and_the_record_says_so() -> None:
    """NVIDIA/cutlass 2004: easy data draws less power, 326 against 305 TFLOP/s."""
    settings = MeasureSettings(metrics=("agreement",), seed=7)
    record = measure_case(Case(implementation="naive", seqlen_q=256), settings)
    assert record.case["inputs"] == record.agreement.inputs == "normal"
    assert record.provenance.seed == 7
    inputs = make_inputs(Case(implementation="naive", seqlen_q=256).problem(), seed=7)
    for x in inputs.values():
        assert abs(float(x.mean())) < 0.02
        assert abs(float(x.std()) - 1) < 0.02
        assert abs(float(x.pow(4).mean()) - 3) < 0.2
        assert x.unique().numel() > 0.9 * x.numel()
    again = make_inputs(Case(implementation="naive", seqlen_q=256).problem(), seed=7)
    assert all(torch.equal(inputs[name], again[name]) for name in inputs)


def test_b13_other_distributions_are_other_cases() -> None:
    # A family's name is a plain string here, a literal in `Case`.
    cases = [Case(implementation="naive", seqlen_q=256, inputs=family) for family in FAMILIES]  # type: ignore[arg-type]
    assert len({case.case_id for case in cases}) == len(FAMILIES)
    settings = MeasureSettings(metrics=("agreement",))
    small = Case(implementation="naive", seqlen_q=8, num_heads=1, head_dim=8, inputs="outlier")
    record = measure_case(small, settings)
    assert record.case["inputs"] == record.agreement.inputs == "outlier"


def test_b13_rows_of_different_distributions_are_never_compared() -> None:
    """One implementation is twice as fast on easy data: nobody overtakes anybody by that."""
    families: list[dict[str, Any]] = [{"inputs": family} for family in FAMILIES]
    records = [
        make_record(name, n, latency_ms=n * speed * (1 + place), error=1e-7, peak_bytes=n, **keys)
        for place, keys in enumerate(families)
        for name, speed in (("naive", 1.0), ("linear", 0.5))
        for n in (256, 512)
    ]
    rows = rows_of({"run": make_run(records)})
    facets = facets_of(rows)
    assert len(facets) == len(FAMILIES)
    assert {facet.extras for facet in facets} == {
        "",
        *(f"inputs={name}" for name in FAMILIES if name != "normal"),
    }
    for metric in METRICS:
        for panel in panels_of(rows, metric):
            assert len(panel.series) == 2
            assert all(len(series.points) == 2 for series in panel.series)
    rankings = summarize(rows).latency
    assert len(rankings) == len(FAMILIES)
    assert all([one.ratio for one in ranking.standings] == [1.0, 2.0] for ranking in rankings)
