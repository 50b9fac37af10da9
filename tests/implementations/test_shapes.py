"""Shapes nobody thought of: hypothesis draws problems, implementations are graded on what they support."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbench.contract.discovery import find_implementations
from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.measure.agreement import grade_outputs
from attnbench.measure.inputs import make_inputs
from attnbench.measure.truth import make_yardstick
from tests.implementations.conformance import FIVE, run

MASKS = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.builds(SlidingWindow, st.integers(1, 90), causal=st.booleans()),
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Any problem of up to 3 rows, 6 heads and 80 tokens, ragged or not, padded or not."""
    batch = draw(st.integers(0, 3))
    groups, heads_each = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    seqlen_q, seqlen_k = draw(st.integers(0, 80)), draw(st.integers(0, 80))
    lengths = st.tuples(*[st.integers(0, seqlen_k)] * batch)
    starts = st.integers(-5, 80) | st.tuples(*[st.integers(-5, 80)] * batch)
    fields: dict[str, Any] = {
        "batch": batch,
        "num_heads": groups * heads_each,
        "num_kv_heads": groups,
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "head_dim": draw(st.sampled_from([8, 16, 24])),
        "head_dim_v": draw(st.sampled_from([8, 16, 40])),
        "mask": draw(MASKS),
        "key_lengths": draw(st.none() | lengths),
        "query_start": draw(st.none() | starts),
        "mode": draw(st.sampled_from(["fwd", "fwd_bwd"])),
    }
    return Problem(**fields)


def adapted(problem: Problem, name: str) -> Problem | None:
    """Return the problem with a mask and a mode that the implementation supports, or None without any."""
    implementation = find_implementations()[name]
    fallbacks: list[Mask] = [problem.mask, Causal(), SlidingWindow(9)]
    for mask in fallbacks:
        for mode in (problem.mode, "fwd"):
            candidate = problem.replace(mask=mask, mode=mode)
            if not refusals(implementation, candidate):
                return candidate
    return None


@pytest.mark.parametrize("name", FIVE)
@given(problem=problems(), seed=st.integers(0, 1000))
def test_any_shape_agrees_with_the_truth(name: str, problem: Problem, seed: int) -> None:
    drawn = adapted(problem, name)
    assert drawn is not None, f"{name} supports none of {problem}"
    implementation = find_implementations()[name]
    if "lse" in implementation.supports:
        drawn = drawn.replace(options={"return_lse": True})
    inputs = make_inputs(drawn, seed=seed)
    result, gradients = run(implementation, drawn, inputs)
    assert result.out.shape == (drawn.batch, drawn.num_heads, drawn.seqlen_q, drawn.head_dim_v)
    assert result.out.dtype == torch.float32
    yardstick = make_yardstick(implementation.semantics, drawn.replace(options={}), inputs, rows=None)
    graded = grade_outputs(
        result.out, result.lse, gradients, yardstick.truth, yardstick.plain, bounds=yardstick.bounds
    )
    assert graded.verdict == "ok", graded
