"""What a step of decoding costs: closed forms are what operators and tensors count."""

from typing import Any

import pytest
import torch

from attnbench.contract.cost import Cost
from attnbench.contract.discovery import find_implementations
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.state import append, extend, new_state, read, state_bytes
from attnbench.contract.steps import reading
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


def assert_costs_what_is_counted(name: str, problem: Problem, room: int, *, bytes_stated: bool) -> None:
    """Of a step behind the context of the problem, in a state with ``room`` for more."""
    implementation, context = IMPLEMENTATIONS[name], problem.seqlen_k - problem.seqlen_q
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
    assert cost.operand_bytes == (operands.total_bytes if bytes_stated else None)
    if cost.peak_bytes is not None:
        assert cost.peak_bytes == lifetimes.peak_bytes - resident


@pytest.mark.parametrize("room", [0, 28], ids=["full", "room"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_costs_what_operators_and_tensors_count(form, shape, room):
    name, mask = FORMS[form]
    shared: dict[str, Any] = {"num_heads": 4, "head_dim": 16, "mask": mask, "mode": "decode"}
    problem = Problem(seqlen_q=1, **shared, **SHAPES[shape])
    assert_costs_what_is_counted(name, problem, room, bytes_stated=True)


@pytest.mark.parametrize("room", [0, 28], ids=["full", "room"])
@pytest.mark.parametrize(("chunk", "seqlen"), [(3, 40), (3, 41), (17, 42), (17, 100), (60, 60), (60, 100)])
@pytest.mark.parametrize("form", FORMS)
def test_so_does_a_chunk(form, chunk, seqlen, room):
    """Within a ring, over its end, behind a ring that is not full yet, and longer than the ring.

    What makes a mask of its own states no bytes.
    """
    name, mask = FORMS[form]
    shape: dict[str, Any] = {"num_heads": 4, "head_dim": 16, "mask": mask, "mode": "decode"}
    problem = Problem(seqlen_q=chunk, seqlen_k=seqlen, batch=2, **shape)
    masked = form in ("naive-window", "sdpa-window") or (form == "sdpa" and chunk < seqlen)
    assert_costs_what_is_counted(name, problem, room, bytes_stated=not masked)


def test_a_chunk_through_a_ring_moves_what_the_ring_keeps():
    """39 positions and the chunk into a copy, the chunk into the ring, beside what attending moves."""
    shape: dict[str, Any] = {"num_heads": 4, "head_dim": 16, "mask": SlidingWindow(40), "batch": 2}
    chunk = Problem(seqlen_q=3, seqlen_k=100, mode="decode", **shape)
    cost, alone = (
        cost_of("sliding-window", p)
        for p in (chunk, Problem(seqlen_q=3, seqlen_k=39 + 3, mode="fwd", **shape))
    )
    position = 2 * 4 * (16 + 16) * 4
    assert cost.operand_bytes == alone.operand_bytes + 2 * position * (39 + 3) + 2 * position * 3
    assert cost.peak_bytes == alone.peak_bytes + position * (39 + 3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("queries", [1, 5, 300])
@pytest.mark.parametrize("source", [10, 100])
def test_reading_a_state_costs_the_same_whatever_it_holds(source, queries, dtype):
    linear = IMPLEMENTATIONS["linear"]
    shape: dict[str, Any] = {"batch": 3, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "head_dim_v": 8}
    crossing = Problem(seqlen_q=queries, seqlen_k=source, mask=Full(), dtype=dtype, **shape)
    q, k, v = (make_inputs(crossing, seed=0)[name] for name in "qkv")
    empty = new_state(linear, crossing, source)
    state = append(linear, empty, k, v, problem=crossing.replace(seqlen_q=source))
    sums = state.sums.clone()
    with LifetimeTracker() as lifetimes:
        resident = lifetimes.hold([q, state.sums])
        with OperandBytes() as operands, FlopCounter() as flops:
            out = read(linear, state, q, problem=crossing).out
    whole = linear.attention(q, k, v, problem=crossing).out
    torch.testing.assert_close(out, whole, rtol=1e-5, atol=1e-5 if dtype == "float32" else 1e-3)
    assert torch.equal(state.sums, sums)
    assert state.lengths == (source,) * 3
    cost = cost_of("linear", reading(crossing.replace(mode="decode")))
    # A query goes through the state: 16 · 9 multiply-adds a head.
    assert cost.flops == cost.executed_flops == flops.flops == 2 * 16 * 9 * 3 * 4 * queries
    assert cost.operand_bytes == operands.total_bytes
    assert cost.peak_bytes == lifetimes.peak_bytes - resident
    size = crossing.dtype_bytes
    assert cost.compulsory_bytes == 3 * 4 * queries * (16 + 8) * size + 3 * 2 * 16 * 9 * 4
    assert cost.exponentials == 3 * 4 * queries * 16
    assert str(cost.leading_term("flops")) == "2*B*H*d*e*n"


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
    ragged = problem.replace(batch=2, key_lengths=(1000, 20), query_start=(999, 19))
    kernel = cost_of("triton-flash", ragged)
    assert (kernel.operand_bytes, kernel.peak_bytes) == (None, None)
