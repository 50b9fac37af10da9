"""What a step of decoding costs: closed forms are what operators and tensors count."""

from typing import Any

import pytest
import torch

from attnbench.contract.cost import Cost
from attnbench.contract.discovery import find_implementations
from attnbench.contract.masks import Causal, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.state import append, extend, new_state, state_bytes
from attnbench.measure.flop_counter import FlopCounter
from attnbench.measure.inputs import make_inputs
from attnbench.measure.lifetimes import LifetimeTracker
from attnbench.measure.operators import OperandBytes

IMPLEMENTATIONS = find_implementations()
FORMS: dict[str, tuple[str, Mask]] = {
    "naive": ("naive", Causal()),
    "sdpa": ("sdpa", Causal()),
    "naive-window": ("naive", SlidingWindow(40)),
    "sdpa-window": ("sdpa", SlidingWindow(40)),
    "triton-flash": ("triton-flash", Causal()),
    "triton-flash-window": ("triton-flash", SlidingWindow(40)),
    "sliding-window": ("sliding-window", SlidingWindow(40)),
    "linear": ("linear", Causal()),
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"seqlen_k": 100},
    "first": {"seqlen_k": 1},
    "within": {"seqlen_k": 30, "batch": 2},
    "at-the-edge": {"seqlen_k": 40, "batch": 2},
    "grouped": {"seqlen_k": 100, "num_kv_heads": 2, "batch": 2},
    "half": {"seqlen_k": 100, "dtype": "float16"},
}


def cost_of(name: str, problem: Problem) -> Cost:
    return IMPLEMENTATIONS[name].cost(problem)


@pytest.mark.parametrize("room", [0, 28], ids=["full", "room"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_costs_what_operators_and_tensors_count(form, shape, room):
    name, mask = FORMS[form]
    problem = Problem(
        **{"num_heads": 4, "head_dim": 16, **SHAPES[shape]}, seqlen_q=1, mask=mask, mode="decode"
    )
    implementation, context = IMPLEMENTATIONS[name], problem.seqlen_k - 1
    inputs = make_inputs(problem, seed=0)
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    state = new_state(implementation, problem, problem.seqlen_k + room)
    filling = problem.replace(seqlen_q=context, seqlen_k=context, mode="fwd")
    state = append(implementation, state, k[:, :, :context], v[:, :, :context], problem=filling)
    with LifetimeTracker() as lifetimes:
        resident = lifetimes.hold(
            [q, k, v, *(x for x in vars(state).values() if isinstance(x, torch.Tensor))]
        )
        with OperandBytes() as operands, FlopCounter() as flops:
            extend(implementation, state, q, k[:, :, context:], v[:, :, context:], problem=problem)
    cost = cost_of(name, problem)
    if name != "triton-flash":  # one operator of its own, whose tiles no counter sees
        assert cost.executed_flops == flops.flops
    if cost.operand_bytes is None:
        assert name in ("naive", "sdpa")
        assert problem.group_size > 1
    else:
        assert cost.operand_bytes == operands.total_bytes
    if cost.peak_bytes is not None:
        assert cost.peak_bytes == lifetimes.peak_bytes - resident


@pytest.mark.parametrize("form", FORMS)
def test_a_step_from_a_state_that_is_constant_costs_the_same_at_any_length(form):
    name, mask = FORMS[form]
    costs = [
        cost_of(name, Problem(seqlen_q=1, seqlen_k=n, mask=mask, mode="decode")) for n in (64, 4096, 1 << 17)
    ]
    if mask == Causal() and name != "linear":
        assert costs[1].flops == 64 * costs[0].flops == 4096 * 8 * 4 * 64
        return
    assert costs[0].theory() == costs[1].theory() == costs[2].theory()


def test_the_step_of_linear_attention_in_numbers():
    problem = Problem(
        seqlen_q=1, seqlen_k=1000, batch=3, num_heads=4, num_kv_heads=2, head_dim=16, mode="decode"
    )
    cost = cost_of("linear", problem)
    # A key goes into the state, a query through it: 16 · 17 multiply-adds a head.
    assert cost.flops == cost.executed_flops == 2 * 16 * 17 * 3 * (4 + 2)
    tokens = 4 * 3 * 16 * (4 + 2 + 2 + 4)
    assert cost.compulsory_bytes == tokens + 2 * state_bytes(IMPLEMENTATIONS["linear"], problem, 1000)
    assert str(cost.leading_term("flops")) == "2*B*d*e*n*(G + H)"


def test_the_step_of_a_window_in_numbers():
    problem = Problem(
        seqlen_q=1, seqlen_k=1000, num_heads=4, head_dim=16, mask=SlidingWindow(40), mode="decode"
    )
    for name in ("naive", "sdpa", "sliding-window"):
        cost = cost_of(name, problem)
        assert cost.flops == cost.executed_flops == 2 * 4 * 40 * (16 + 16)
        assert cost.compulsory_bytes == 4 * 4 * 16 * (1 + 40 + 40 + 1)
    beyond = cost_of("naive", problem.replace(batch=2, key_lengths=(1000, 20), query_start=(999, 19)))
    assert beyond.flops == 2 * 4 * (40 + 20) * (16 + 16)
    assert beyond.operand_bytes is None
