"""The families of inputs: each is the distribution that it says it is, seeded, and survives float16."""

import math
from typing import get_args

import pytest
import torch

from attnbench.contract.evaluation import truth
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.measure.inputs import FAMILIES, draw, inputs_key, make_inputs
from attnbench.plan.case import INPUTS_ONLY_AT, Inputs

SHAPE = (1, 8, 2048, 64)


def test_the_families_are_those_of_the_case_key() -> None:
    attention_only = {name for name, level in INPUTS_ONLY_AT.items() if level == "attention"}
    assert set(FAMILIES) == {"normal", *attention_only} == set(get_args(Inputs)) - {"text"}


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_are_seeded_and_finite_in_float16(family: str) -> None:
    k = draw(family, SHAPE, "float16", seed=3, name="k")
    assert k.isfinite().all()
    assert torch.equal(k, draw(family, SHAPE, "float16", seed=3, name="k"))
    same = torch.equal(k, draw(family, SHAPE, "float16", seed=4, name="k"))
    assert same is (family == "constant")
    problem = Problem(seqlen_q=64, mode="bwd")
    assert inputs_key(problem, family) != inputs_key(problem, "normal" if family != "normal" else "outlier")
    upstream = draw(family, SHAPE, "float32", seed=3, name="grad_out")
    assert torch.equal(upstream, draw("normal", SHAPE, "float32", seed=3, name="grad_out"))


def test_one_element_in_a_thousand_is_an_outlier() -> None:
    """N(0, 1) + N(0, 100) · Bernoulli(0.001): its variance is 1 + 0.001 · 100 = 1.1."""
    x = draw("outlier", SHAPE, "float64", seed=0, name="q")
    assert float(x.var()) == pytest.approx(1.1, abs=0.02)
    beyond = math.erfc(6 / math.sqrt(2 * 101))  # P(|N(0, 101)| > 6); N(0, 1) never is
    assert float((x.abs() > 6).double().mean()) == pytest.approx(0.001 * beyond, rel=0.1)


def test_large_logits_reach_a_thousand() -> None:
    inputs = make_inputs(Problem(seqlen_q=512, num_heads=4, head_dim=64, dtype="float16"), "large-logits")
    q, k = inputs["q"].double(), inputs["k"].double()
    logits = q @ k.transpose(-1, -2) / 8
    assert float(logits.std()) == pytest.approx(200, rel=0.05)
    assert 800 < float(logits.abs().max()) < 1500
    assert float((logits * 8).abs().max()) < torch.finfo(torch.float16).max


def test_the_long_tail_is_student_s_t() -> None:
    """P(|t₃| > x) = 1 - (2/π) (atan u + u / (1 + u²)) with u = x / √3, here of t₃ / √3."""
    x = draw("long-tail", SHAPE, "float64", seed=0, name="q").abs()
    for at in (0.5, 2.0, 8.0):
        beyond = 1 - 2 / math.pi * (math.atan(at) + at / (1 + at**2))
        assert float((x > at).double().mean()) == pytest.approx(beyond, rel=0.05)


def test_what_constant_inputs_give_is_known() -> None:
    problem = Problem(seqlen_q=50, num_heads=2, head_dim=16, mode="fwd_bwd")
    inputs = make_inputs(problem, "constant", seed=1)
    got = truth(
        SOFTMAX,
        *(inputs[name].double() for name in "qkv"),
        problem=problem,
        grad_out=inputs["grad_out"],
    )
    keys = torch.arange(1, 51, dtype=torch.float64)
    torch.testing.assert_close(got.out, torch.ones_like(got.out))
    torch.testing.assert_close(got.lse, (4 + keys.log()).expand(1, 2, 50))
    for gradient in (got.dq, got.dk):
        assert float(gradient.abs().max()) < 1e-12
    weights = torch.tril(torch.ones(50, 50, dtype=torch.float64)) / keys[:, None]
    torch.testing.assert_close(got.dv, weights.T @ inputs["grad_out"].double())
