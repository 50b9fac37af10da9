"""Budgets that no lucky rounding sets: under large logits, where few rows are near a tie, no sound kernel is
called wrong, and still every fault is.
"""

import math
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.contract.discovery import get_implementation
from attnbench.contract.evaluation import baseline, truth
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.measure.agreement import grade_outputs
from attnbench.measure.baseline_error import FEWEST, MOST, affordable_roundings, farthest
from attnbench.measure.inputs import make_inputs
from attnbench.measure.record import Agreement
from attnbench.measure.truth import Yardstick, make_yardstick
from tests.implementations.conformance import run

SEEDS = range(30)


def flags(section: Agreement) -> set[str]:
    """Name the tensors over their budgets."""
    parts = {"lse": section.lse, **(section.gradients or {})}
    found = {name for name, part in parts.items() if part is not None and part.verdict != "ok"}
    return found | ({"out"} if (section.budget_used or 0) > 1 else set())


def summed_in_other_orders(
    problem: Problem, inputs: dict[str, Tensor]
) -> list[tuple[Any, dict[str, Tensor]]]:
    """Return what ``naive`` gives with the elements of heads in their order and in two others."""
    results = []
    for seed in (None, 1001, 1002):
        order = torch.arange(problem.head_dim)
        if seed is not None:
            order = torch.randperm(problem.head_dim, generator=torch.Generator().manual_seed(seed))
        back = torch.argsort(order)
        given = {**inputs, **{name: inputs[name][..., order].contiguous() for name in "qk"}}
        result, gradients = run(get_implementation("naive"), problem, given)
        results.append((result, {**gradients, **{name: gradients[name][..., back] for name in ("dq", "dk")}}))
    return results


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        pytest.param("float16", marks=pytest.mark.long),
        pytest.param("bfloat16", marks=pytest.mark.long),
    ],
)
def test_a_sound_kernel_in_another_order_is_within_budget_for_thirty_seeds(dtype: str) -> None:
    """And it is the many roundings that make it so: by the first alone some would be called wrong."""
    problem = Problem(
        seqlen_q=97, num_heads=2, head_dim=32, dtype=dtype, mode="fwd_bwd", options={"return_lse": True}
    )
    flagged: dict[int, set[str]] = {}
    by_one_sample: dict[int, set[str]] = {}
    for seed in SEEDS:
        inputs = make_inputs(problem, "large-logits", seed=seed)
        yardstick = make_yardstick(SOFTMAX, problem, inputs, rows=None)
        q, k, v, grad_out = (inputs[name] for name in ("q", "k", "v", "grad_out"))
        sample = baseline(SOFTMAX, q, k, v, problem=problem, grad_out=grad_out)
        for result, gradients in summed_in_other_orders(problem, inputs):
            for plain, found in ((yardstick.plain, flagged), (sample, by_one_sample)):
                parts = flags(
                    grade_outputs(
                        *(result.out, result.lse, gradients, yardstick.truth, plain), bounds=yardstick.bounds
                    )
                )
                if parts:
                    found[seed] = found.get(seed, set()) | parts
    assert flagged == {}
    assert by_one_sample != {}


BUGS: dict[str, dict[str, Any]] = {
    "scale × 1.01": {"scale": 1.01},
    "scale × 1.001": {"scale": 1.001},
    "causal off by one": {"query_start": 1},
    "non-causal": {"mask": "full"},
}
SHOWN = {"float32": set(BUGS), "float16": {"causal off by one", "non-causal"}}
"""Float16 rounds scores of ±1000 by up to 0.25: a wrong scale is no more, and less is seen in dq and dk."""
SHOWN_BY = {"float32": {"out", "dq", "dk", "dv"}, "float16": {"out", "dv"}}


@lru_cache(maxsize=1)
def _yardstick(problem: Problem, seed: int) -> Yardstick:
    return make_yardstick(SOFTMAX, problem, make_inputs(problem, "large-logits", seed=seed), rows=None)


def _flags_of_bug(problem: Problem, seed: int, changes: dict[str, Any]) -> set[str]:
    """Grade a kernel whose only fault is the bug: float64, rounded once."""
    inputs = make_inputs(problem, "large-logits", seed=seed)
    q, k, v, grad_out = (inputs[name] for name in ("q", "k", "v", "grad_out"))
    if "scale" in changes:
        changes = {"scale": problem.softmax_scale * changes["scale"]}
    wrong = truth(SOFTMAX, q, k, v, problem=problem.replace(**changes), grad_out=grad_out)
    gradients = {name: getattr(wrong, name).to(q.dtype) for name in ("dq", "dk", "dv")}
    yardstick = _yardstick(problem, seed)
    return flags(
        grade_outputs(
            *(wrong.out.to(q.dtype), None, gradients, yardstick.truth, yardstick.plain),
            bounds=yardstick.bounds,
        )
    )


@pytest.mark.parametrize("dtype", SHOWN)
@pytest.mark.parametrize("width", [32, 64])
def test_injected_bugs_are_caught_under_large_logits(dtype: str, width: int) -> None:
    problem = Problem(seqlen_q=256, num_heads=2, head_dim=width, dtype=dtype, mode="fwd_bwd")
    for seed in (0, 1):
        for bug in SHOWN[dtype]:
            assert _flags_of_bug(problem, seed, BUGS[bug]) >= SHOWN_BY[dtype], (bug, seed)


@pytest.mark.parametrize("dtype", SHOWN)
def test_a_dropped_last_key_is_caught_under_large_logits_where_it_has_weight(dtype: str) -> None:
    """One key has nearly all the weight of a row: of 16 heads with 12 keys, in some it is the last one."""
    problem = Problem(seqlen_q=12, num_heads=16, head_dim=32, dtype=dtype, mode="fwd_bwd")
    assert "out" in _flags_of_bug(problem, 0, {"key_lengths": (11,)})


def results_of(*errors: float) -> dict[str, Tensor | None]:
    """Tensors out and dv that are off by so much, an lse of rows that see nothing, and no dq."""
    out, dv = errors
    return {
        "out": torch.tensor([1.0, 1.0 + out]),
        "dv": torch.tensor([1.0 + dv, 1.0]),
        "lse": torch.tensor([0.0, -math.inf]),
        "dq": None,
    }


EXACT = {name: None if x is None else x.double() for name, x in results_of(0.0, 0.0).items()}


def kept_of(samples: list[tuple[float, float]], most: int = MOST) -> tuple[list[float], int]:
    """Return the errors of what is kept, and how often the baseline was evaluated."""
    asked: list[int] = []

    def evaluate(rounding: int) -> dict[str, Tensor | None]:
        asked.append(rounding)
        return results_of(*samples[rounding % len(samples)])

    kept = farthest(evaluate, EXACT, dtype=torch.float32, most=most)
    assert "dq" not in kept
    assert torch.equal(kept["lse"], EXACT["lse"].float())
    assert asked == list(range(len(asked)))
    return [float((kept[name] - EXACT[name]).abs().max()) for name in ("out", "dv")], len(asked)


def test_each_tensor_is_of_the_rounding_that_is_farthest_from_the_truth() -> None:
    errors, asked = kept_of([(1e-3, 0.0), (0.0, 3e-3), (2e-3, 1e-3)], most=3)
    assert errors == pytest.approx([2e-3, 3e-3], rel=1e-3)
    assert asked == 3


def test_errors_about_the_floor_need_no_third_rounding() -> None:
    assert kept_of([(1e-6, 1e-6)])[1] == FEWEST
    assert kept_of([(1e-6, 1e-4)])[1] == MOST


def test_luck_twice_in_one_tensor_does_not_end_it_while_another_shows_its_rounding() -> None:
    errors, _ = kept_of([(0.0, 1e-3), (0.0, 1e-3), (5e-4, 1e-3)])
    assert errors[0] == pytest.approx(5e-4, rel=1e-3)


def test_long_cases_are_rounded_as_often_as_is_affordable() -> None:
    assert affordable_roundings(0) == affordable_roundings(97 * 98) == MOST
    assert affordable_roundings(1 << 19) == 8
    assert affordable_roundings(1 << 25) == FEWEST
