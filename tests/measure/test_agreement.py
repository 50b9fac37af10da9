"""The error budget: what it must catch, what it must let pass, and what is not finite."""

import math

import pytest
import torch

from attnbench.contract.evaluation import baseline
from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.measure.agreement import grade, worst_verdict
from attnbench.measure.inputs import make_inputs
from attnbench.measure.record import Error
from attnbench.measure.truth import make_yardstick, sample_rows

NAN, INF = math.nan, math.inf


def values(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize(
    ("reference", "actual", "passes", "nonfinite", "nonfinite_reference"),
    [
        ((1, NAN), (1, 2), False, 0, 1),
        ((1, 2), (1, NAN), False, 1, 0),
        ((NAN,), (NAN,), False, 1, 1),
        ((INF,), (-INF,), False, 1, 1),
        ((INF,), (INF,), False, 1, 1),
        ((0,), (0,), True, 0, 0),
        ((1, 2), (1, 2), True, 0, 0),
    ],
)
def test_only_equal_finite_values_pass(
    reference: tuple[float, ...],
    actual: tuple[float, ...],
    passes: bool,
    nonfinite: int,
    nonfinite_reference: int,
) -> None:
    graded = grade(values(*actual).float(), values(*reference), values(*reference))
    assert (graded.verdict == "ok") is passes
    assert (graded.nonfinite, graded.nonfinite_reference) == (nonfinite, nonfinite_reference)
    if reference == actual == (0,):
        assert graded.rms_relative_error == 0
        assert graded.max_abs_error == 0


def test_minus_infinity_agrees_with_itself_in_lse_alone() -> None:
    pair = values(-INF, 1.0)
    assert grade(pair.float(), pair, pair, name="lse").verdict == "ok"
    assert grade(pair.float(), pair, pair, name="out").verdict == "nonfinite"
    assert (
        grade(values(-INF, 1.0).float(), values(0.0, 1.0), values(0.0, 1.0), name="lse").verdict
        == "nonfinite"
    )
    assert grade(values(0.0, 1.0).float(), pair, pair, name="lse").verdict == "nonfinite"


def test_a_wrong_shape_is_no_result() -> None:
    assert grade(torch.zeros(2, 3), torch.zeros(3, 2).double(), torch.zeros(3, 2)).verdict == "wrong_shape"


@pytest.mark.parametrize(("name", "multiple"), [("out", 2), ("lse", 2), ("dq", 3), ("dv", 3)])
def test_the_budget_is_a_multiple_of_the_baseline_and_a_floor(name: str, multiple: int) -> None:
    reference = torch.zeros(1000, dtype=torch.float64)
    reference[0] = 1.0
    plain = reference + 1e-4
    eps = torch.finfo(torch.float32).eps
    graded = grade(reference.float(), reference, plain.float(), name=name)
    assert graded.budget == pytest.approx(multiple * 1e-4 + 2e-6, rel=1e-2)
    assert 2 * eps < 2e-6
    # A bad baseline is no excuse: the a-priori bound caps it.
    capped = grade(reference.float(), reference, (reference + 1).float(), name=name, bound=1e-5)
    assert capped.budget == pytest.approx(1e-5 + 2e-6)


def test_small_uniform_errors_are_caught_by_the_root_mean_square() -> None:
    reference = torch.ones(1000, dtype=torch.float64)
    plain = reference.clone()
    plain[0] += 1e-3
    graded = grade((reference * (1 + 1e-3)).float(), reference, plain.float())
    assert graded.max_abs_error is not None
    assert graded.budget is not None
    assert graded.max_abs_error < graded.budget
    assert graded.verdict == "over_budget"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_a_priori_bound_holds_for_the_baseline(dtype: str) -> None:
    problem = Problem(seqlen_q=100, num_heads=2, head_dim=32, dtype=dtype, mode="fwd_bwd", mask=Causal())
    inputs = make_inputs(problem, seed=5)
    yardstick = make_yardstick(SOFTMAX, problem, inputs, rows=None)
    for name in ("out", "lse", "dq", "dk", "dv"):
        error = (getattr(yardstick.plain, name).double() - getattr(yardstick.truth, name)).abs().max()
        assert float(error) <= yardstick.bounds[name]


def test_the_worst_part_is_named() -> None:
    parts = {
        "out": Error(verdict="ok", budget_used=0.9),
        "dq": Error(verdict="nonfinite"),
        "dk": Error(verdict="ok"),
    }
    assert worst_verdict(parts) == ("dq", "nonfinite")


def test_sampled_rows_hold_the_borders_and_the_ends() -> None:
    assert sample_rows(256, 256, seed=0) is None
    rows = sample_rows(4096, 256, seed=0)
    assert rows is not None
    assert {0, 127, 128, 4095, 4095 - 128} <= set(rows.tolist())
    assert rows.numel() <= 256
    assert int(rows.diff().max()) <= 64
    assert torch.equal(rows, sample_rows(4096, 256, seed=0))


def test_shared_truths_are_read_back_bit_for_bit(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path)) / "truths"
    problem = Problem(seqlen_q=300, num_heads=2, head_dim=16, mode="fwd_bwd")
    inputs = make_inputs(problem, seed=0)
    rows = sample_rows(300, 64, seed=0)
    arguments = {"rows": rows, "folder": folder, "inputs_key": "k"}
    first = make_yardstick(SOFTMAX, problem, inputs, **arguments)  # type: ignore[arg-type]
    (kept,) = folder.iterdir()
    again = make_yardstick(SOFTMAX, problem, inputs, **arguments)  # type: ignore[arg-type]
    for one, other in zip((*first.truth, *first.plain), (*again.truth, *again.plain), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
    kept.write_bytes(b"torn")
    torn = make_yardstick(SOFTMAX, problem, inputs, **arguments)  # type: ignore[arg-type]
    assert torch.equal(torn.truth.out, first.truth.out)
    other_mask = make_yardstick(SOFTMAX, problem.replace(mask="full"), inputs, **arguments)  # type: ignore[arg-type]
    assert not torch.equal(other_mask.truth.out, first.truth.out)


def test_the_baseline_gradient_uses_the_masked_upstream_gradient() -> None:
    problem = Problem(seqlen_q=50, num_heads=1, head_dim=8, mode="fwd_bwd")
    inputs = make_inputs(problem, seed=0)
    rows = torch.tensor([3, 49])
    yardstick = make_yardstick(SOFTMAX, problem, inputs, rows=rows)
    upstream = torch.zeros_like(inputs["grad_out"])
    upstream[:, :, rows] = inputs["grad_out"][:, :, rows]
    whole = baseline(SOFTMAX, inputs["q"], inputs["k"], inputs["v"], problem=problem, grad_out=upstream)
    torch.testing.assert_close(yardstick.plain.dk, whole.dk, rtol=1e-5, atol=1e-6)
