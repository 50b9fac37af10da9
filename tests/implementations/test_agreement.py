"""Every implementation against float64 truth on every shape it supports.

Out, lse and gradients within budget.
"""

import pytest

from attnbench.contract.discovery import broken_implementations, find_implementations
from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.contract.problem import Problem
from tests.implementations.conformance import FIVE, graded, grid

REQUIRED = [
    "cross-lengths",
    "query-start",
    "grouped-heads",
    "key-lengths",
    "value-dim",
    "dtype:float32",
    "dtype:float16",
    "dtype:bfloat16",
]
RECOMPUTED = (
    "PyTorch's CPU kernel recomputes p from an lse rounded to float32, so its dv error grows with the logits"
)
OVER_BUDGET = {
    "sdpa-flash-window1-n1000-float32-fwd_bwd": f"{RECOMPUTED}: 1.2 times, where one key alone is seen",
    "sdpa-flash-window1-scale-float32-fwd_bwd": f"{RECOMPUTED}: 2.9 times, where one key alone is seen",
    "sdpa-flash-window1-width-80-float32-fwd_bwd": f"{RECOMPUTED}: 1.4 times, where one key alone is seen",
}
"""What is measured to be over its budget in torch 2.13, none of it ours. A cured one is noticed."""
OF_SOME_PROCESSORS = {"sdpa-flash-window1-width-80-float32-fwd_bwd"}
"""Over its budget as measured on an AMD EPYC, within it on an Intel Xeon."""


UNLIKE = ("n129", "grouped", "key-lengths", "ragged-starts", "rows-see-nothing", "one-query", "short-k")


def _is_unlike(case_id: str) -> bool:
    return any(f"-{name}-" in case_id for name in UNLIKE)


def _marks(case_id: str, problem: Problem) -> list[pytest.MarkDecorator]:
    # Interpreted kernels are slow: causal on every shape, the others on those that are most unlike.
    if case_id.startswith("triton-flash-") and problem.mask != Causal():
        return [] if _is_unlike(case_id) else [pytest.mark.long]
    if case_id not in OVER_BUDGET:
        return []
    return [pytest.mark.xfail(reason=OVER_BUDGET[case_id], strict=case_id not in OF_SOME_PROCESSORS)]


def _is_covered_elsewhere(case_id: str, problem: Problem) -> bool:
    """Types take turns where interpreted kernels meet other masks than the causal one, as the pairs and the
    random problems of `test_flash_matrix.py` have both.
    """
    if not case_id.startswith("triton-flash-") or problem.mask == Causal():
        return False
    return problem.dtype != ("float32" if _is_unlike(case_id) else "float16")


CASES = [
    pytest.param(name, problem, id=case_id, marks=_marks(case_id, problem))
    for name, problem, case_id in grid(("float32", "float16", "bfloat16"), ("fwd", "fwd_bwd"))
    if not _is_covered_elsewhere(case_id, problem)
]


def test_every_expected_failure_is_a_case() -> None:
    assert set(OVER_BUDGET) <= {case.id for case in CASES}


def test_all_five_are_found_and_none_is_broken() -> None:
    assert set(FIVE) <= set(find_implementations())
    assert broken_implementations() == {}


@pytest.mark.parametrize("name", FIVE)
def test_what_the_five_must_support(name: str) -> None:
    """Closed support cuts both ways.

    The grid below only holds what is listed, so what must be listed stands here.
    """
    implementation = find_implementations()[name]
    assert set(REQUIRED) <= implementation.supports
    mask = SlidingWindow(7) if name == "sliding-window" else Causal()
    problem = Problem(
        seqlen_q=2, seqlen_k=16, query_start=6, key_lengths=(8,), mask=mask, num_heads=4, num_kv_heads=2
    )
    assert refusals(implementation, problem) == []
    assert refusals(implementation, problem.replace(dtype="float16")) == []
    assert refusals(implementation, problem.replace(mode="fwd_bwd")) == []
    assert implementation.summary
    assert implementation.paper
    assert implementation.complexity.time.startswith("O(")
    assert implementation.complexity.memory.startswith("O(")


@pytest.mark.parametrize(("name", "problem"), CASES)
def test_within_budget(name: str, problem: Problem) -> None:
    agreement = graded(name, problem)
    assert agreement.verdict == "ok", agreement
