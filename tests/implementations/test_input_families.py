"""Every implementation within its error budget on every family of inputs."""

from typing import Any

import pytest

from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.measure.agreement import grade_outputs
from attnbench.measure.inputs import FAMILIES, make_inputs
from attnbench.measure.truth import make_yardstick
from tests.implementations.conformance import FIVE, run, uncompiled


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "normal"])
def test_within_budget(family: str, name: str, dtype: str) -> None:
    implementation = uncompiled()[name]
    mask = SlidingWindow(24) if name == "sliding-window" else Causal()
    options = {"return_lse": True} if "lse" in implementation.supports else {}
    form: dict[str, Any] = {"num_heads": 2, "head_dim": 64, "mask": mask, "dtype": dtype, "options": options}
    problem = Problem(seqlen_q=97, mode="fwd_bwd", **form)
    assert refusals(implementation, problem) == []
    inputs = make_inputs(problem, family, seed=42)
    result, gradients = run(implementation, problem, inputs)
    yardstick = make_yardstick(implementation.semantics, problem, inputs, rows=None)
    graded = grade_outputs(
        result.out,
        result.lse,
        gradients,
        yardstick.truth,
        yardstick.plain,
        bounds=yardstick.bounds,
        lse_expected=bool(options),
    )
    assert graded.verdict == "ok", graded
