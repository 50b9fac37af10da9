"""Computations rounded elsewhere: in float64 the same numbers, in the case's dtype another sample of its
rounding.
"""

import dataclasses
from typing import Any

import pytest
import torch

from attnbench.contract.columns import Columns, column_gradients, softmax_columns
from attnbench.contract.evaluation import baseline, truth
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import LINEAR_ELU, SOFTMAX, Semantics
from attnbench.measure.inputs import make_inputs

SHAPES: dict[str, dict[str, Any]] = {
    "causal": {"seqlen_q": 40, "mask": Causal()},
    "window": {"seqlen_q": 60, "mask": SlidingWindow(9)},
    "grouped-narrow-values": {
        "seqlen_q": 33,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim_v": 5,
        "mask": Full(),
    },
    "ragged": {
        "seqlen_q": 9,
        "seqlen_k": 40,
        "batch": 3,
        "query_start": (0, 10, 31),
        "key_lengths": (9, 0, 40),
    },
    "empty": {"seqlen_q": 0, "seqlen_k": 4, "mask": Full()},
}


def problem_of(shape: str, dtype: str = "float64") -> Problem:
    return Problem(**{"num_heads": 2, "head_dim": 16, "mode": "fwd_bwd", "dtype": dtype, **SHAPES[shape]})


@pytest.mark.parametrize("rows", [None, torch.tensor([0, 3, 4, 8])], ids=["all", "sampled"])
@pytest.mark.parametrize("semantics", [SOFTMAX, LINEAR_ELU], ids=lambda semantics: semantics.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_order_and_unit_change_no_number(
    shape: str, semantics: Semantics, rows: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several blocks of rows, each in an order of its own, and every result back in its place."""
    monkeypatch.setattr("attnbench.contract.evaluation.BLOCK_BYTES", 1 << 13)
    problem = problem_of(shape)
    rows = None if problem.seqlen_q == 0 else rows
    inputs = make_inputs(problem, seed=3)
    arguments = tuple(inputs[name] for name in "qkv")
    given: dict[str, Any] = {"problem": problem, "grad_out": inputs["grad_out"], "rows": rows}
    plain = baseline(semantics, *arguments, **given)
    for rounding in (1, 2):
        other = baseline(semantics, *arguments, **given, rounding=rounding)
        for wanted, found in zip(plain, other, strict=True):
            if wanted is None:
                assert found is None
            else:
                torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_order_and_unit_change_no_gradient_of_sampled_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.contract.columns.BLOCK_BYTES", 1 << 14)
    problem = problem_of("grouped-narrow-values")
    inputs = make_inputs(problem, seed=3)
    q, k, v, grad_out = (inputs[name] for name in ("q", "k", "v", "grad_out"))
    exact = truth(SOFTMAX, q, k, v, problem=problem, grad_out=grad_out)
    assert exact.lse is not None
    columns = torch.tensor([0, 7, 32])

    def found(rounding: int) -> Columns:
        statistics = exact.out, exact.lse
        return column_gradients(
            *(softmax_columns, q, k, v, *statistics, grad_out),
            problem=problem,
            columns=columns,
            dtype=torch.float64,
            rounding=rounding,
        )

    for rounding in (0, 1, 2):
        torch.testing.assert_close(found(rounding).dk, exact.dk[:, :, columns], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(found(rounding).dv, exact.dv[:, :, columns], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("semantics", [SOFTMAX, LINEAR_ELU], ids=lambda semantics: semantics.name)
def test_each_number_is_another_sample_and_always_the_same(dtype: str, semantics: Semantics) -> None:
    problem = problem_of("causal", dtype)
    inputs = make_inputs(problem, seed=3)
    arguments = tuple(inputs[name] for name in "qkv")
    given: dict[str, Any] = {"problem": problem, "grad_out": inputs["grad_out"]}
    exact = truth(semantics, *arguments, **given)
    samples = [baseline(semantics, *arguments, **given, rounding=rounding) for rounding in range(4)]
    again = baseline(semantics, *arguments, **given, rounding=3)
    for name in ("out", "dq", "dk", "dv"):
        found = [getattr(sample, name) for sample in samples]
        assert torch.equal(found[3], getattr(again, name))
        assert not any(torch.equal(found[0], other) for other in found[1:])
        errors = [float((x.double() - getattr(exact, name)).norm()) for x in found]
        assert max(errors) < 3 * min(errors), "as good a computation, over all elements"


def test_semantics_that_state_no_unit_have_one_baseline() -> None:
    bare = dataclasses.replace(SOFTMAX, in_unit=None)
    problem = problem_of("causal", "float32")
    inputs = make_inputs(problem, seed=3)
    q, k, v = (inputs[name] for name in "qkv")
    assert torch.equal(
        baseline(bare, q, k, v, problem=problem, rounding=5).out, baseline(bare, q, k, v, problem=problem).out
    )


def test_no_unit_makes_a_stored_score_overflow() -> None:
    q = torch.full((1, 1, 2, 16), 45.0, dtype=torch.float16)
    problem = Problem(seqlen_q=2, num_heads=1, head_dim=16, dtype="float16", scale=2.0, mask=Full())
    assert 45.0**2 * 16 * 2 < 65504 < 1.02 * 45.0**2 * 16 * 2
    for rounding in range(8):
        found = baseline(SOFTMAX, q, q, q, problem=problem, rounding=rounding)
        assert torch.isfinite(found.out).all()
        assert torch.isfinite(found.lse).all()
