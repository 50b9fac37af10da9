"""What the error budget as a whole must catch and must let pass, and that it ranks two precisions rightly."""

from functools import lru_cache
from typing import Any

import pytest
import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.evaluation import baseline, truth
from attnbench.contract.masks import Full
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX, Semantics
from attnbench.measure.agreement import grade_outputs
from attnbench.measure.inputs import make_inputs
from attnbench.measure.record import Agreement, Error
from attnbench.measure.truth import Yardstick, make_yardstick
from tests.implementations.conformance import run

BUGS: dict[str, dict[str, Any]] = {
    "none": {},
    "scale × 1.01": {"scale": 64**-0.5 * 1.01},
    "scale × 1.001": {"scale": 64**-0.5 * 1.001},
    "last key dropped for last row": {"key_lengths": (511,)},
    "causal off by one": {"query_start": 1},
    "non-causal": {"mask": "full"},
}
MUST_BE_CAUGHT = {
    "float32": set(BUGS) - {"none"},
    "float16": {"scale × 1.01", "last key dropped for last row", "causal off by one", "non-causal"},
    "bfloat16": {"causal off by one", "non-causal"},
}
"""At 512 tokens and width 64, causal. What 16 bits hide, float32 shows: a 16-bit case is graded in both."""


@lru_cache(maxsize=2)
def yardstick_of(semantics: Semantics, problem: Problem, seed: int) -> Yardstick:
    return make_yardstick(semantics, problem, make_inputs(problem, seed=seed), rows=None)


def graded_bug(bug: str, problem: Problem) -> Agreement:
    """Grade a kernel whose only fault is the bug: float64, rounded once."""
    inputs = make_inputs(problem, seed=42)
    q, k, v = (inputs[name] for name in "qkv")
    wrong = truth(SOFTMAX, q, k, v, problem=problem.replace(**BUGS[bug]), grad_out=inputs.get("grad_out"))
    parts = {name: getattr(wrong, name) for name in ("dq", "dk", "dv")}
    gradients = {name: part.to(q.dtype) for name, part in parts.items() if part is not None}
    yardstick = yardstick_of(SOFTMAX, problem, 42)
    bounds = yardstick.bounds
    return grade_outputs(
        wrong.out.to(q.dtype), None, gradients, yardstick.truth, yardstick.plain, bounds=bounds
    )


@pytest.mark.parametrize("dtype", MUST_BE_CAUGHT)
def test_injected_bugs_are_caught(dtype: str) -> None:
    """Nothing but out shows them here: a forward pass has no gradients, as a rule no lse either.

    What one dropped key does depends on the weight that it had: over 8 heads, one had enough for float16.
    """
    problem = Problem(seqlen_q=512, num_heads=8, head_dim=64, dtype=dtype)
    caught = {bug for bug in BUGS if graded_bug(bug, problem).verdict != "ok"}
    assert "none" not in caught
    assert caught >= MUST_BE_CAUGHT[dtype]


def test_gradients_show_them_too() -> None:
    problem = Problem(seqlen_q=512, num_heads=1, head_dim=64, mode="fwd_bwd")
    for bug in MUST_BE_CAUGHT["float32"]:
        parts = graded_bug(bug, problem).gradients
        assert {part.verdict for part in parts.values()} == {"over_budget"}, bug


def clean_comparisons(lengths: tuple[int, ...], seeds: range) -> list[tuple[str, Error]]:
    """Grade every tensor that sound implementations return, over lengths, widths, masks and dtypes."""
    found: list[tuple[str, Error]] = []
    for seed in seeds:
        for n in lengths:
            for width in (16, 64, 128):
                for mask in ("causal", "full"):
                    for dtype in ("float32", "float16", "bfloat16"):
                        form: dict[str, Any] = {
                            "num_heads": 2,
                            "head_dim": width,
                            "mask": mask,
                            "dtype": dtype,
                        }
                        problem = Problem(seqlen_q=n, mode="fwd_bwd", **form)
                        for name in ("naive", "sdpa", "linear"):
                            found += _parts(name, problem, seed)
    return found


def _parts(name: str, problem: Problem, seed: int) -> list[tuple[str, Error]]:
    implementation = get_implementation(name)
    yardstick = yardstick_of(implementation.semantics, problem, seed)
    with_lse = "lse" in implementation.supports
    asked = problem.replace(options={"return_lse": True}) if with_lse else problem
    result, gradients = run(implementation, asked, make_inputs(problem, seed=seed))
    section = grade_outputs(
        result.out, result.lse, gradients, yardstick.truth, yardstick.plain, bounds=yardstick.bounds
    )
    parts: dict[str, Error | None] = {"out": section, "lse": section.lse, **(section.gradients or {})}
    where = f"{name} {problem.mask.slug} n{problem.seqlen_q} d{problem.head_dim} {problem.dtype} seed {seed}"
    return [(f"{part} of {where}", error) for part, error in parts.items() if error is not None]


def flagged(comparisons: list[tuple[str, Error]]) -> list[str]:
    return [name for name, error in comparisons if error.verdict != "ok"]


def test_clean_comparisons_are_not_flagged() -> None:
    comparisons = clean_comparisons((1, 2, 7, 63), range(1))
    assert len(comparisons) >= 900
    assert flagged(comparisons) == []


@pytest.mark.long
def test_none_of_2500_clean_comparisons_is_flagged() -> None:
    comparisons = clean_comparisons((1, 2, 7, 63, 128, 257, 512), range(1, 3))
    assert len(comparisons) >= 2500
    assert flagged(comparisons) == []


@pytest.mark.parametrize("width", [64, 128])
def test_on_outliers_flash_style_float16_is_closer_than_16_bits_everywhere(width: int) -> None:
    """FlashAttention-3, arXiv 2407.08608, table of errors: 1.9e-4 against 3.2e-4.

    Scores and softmax in float32, weights and out rounded, against everything stored in 16 bits.
    """
    problem = Problem(seqlen_q=256, num_heads=2, head_dim=width, dtype="float16", mask=Full())
    inputs = make_inputs(problem, "outlier", seed=42)
    q, k, v = (inputs[name] for name in "qkv")
    exact = truth(SOFTMAX, q, k, v, problem=problem).out

    def error(out: torch.Tensor) -> float:
        return float((out.double() - exact).square().mean().sqrt())

    flash = error(get_implementation("triton-flash").attention(q, k, v, problem=problem).out)
    naive = error(get_implementation("naive").attention(q, k, v, problem=problem).out)
    plain = error(baseline(SOFTMAX, q, k, v, problem=problem).out)
    assert flash < 0.8 * naive
    assert flash < 0.8 * plain
