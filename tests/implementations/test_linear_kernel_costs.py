"""What the kernels of linear attention cost: closed forms are what interpreter and operators count."""

import gc
import math
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from attnbench.contract import state as states
from attnbench.contract.cost import Cost
from attnbench.contract.evaluation import truth
from attnbench.contract.masks import Causal, Full, Mask
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import LINEAR_ELU
from attnbench.implementations._linear import step  # noqa: F401  registers attnbench::linear_step
from attnbench.implementations._linear.forward import linear_forward
from attnbench.implementations._linear.kernel_cost import kernel_cost, operator_work
from attnbench.implementations._linear.programs import make_shape
from attnbench.implementations._linear.step_cost import step_cost
from attnbench.implementations._linear.tiles import LinearTile, linear_tile_for
from attnbench.measure.flop_counter import FlopCounter
from attnbench.measure.inputs import make_inputs
from attnbench.measure.interpreter import sample_kernels, trace_kernels
from attnbench.measure.lifetimes import LifetimeTracker
from attnbench.measure.operators import OperandBytes
from attnbench.measure.watching import Together
from tests.implementations.conformance import DEFAULTS, SHAPES
from tests.implementations.linear_kernels import KERNELS, LINEAR, with_tile

ORDINARY = [
    ("n129", Causal(), "float16", "fwd"),
    ("grouped", Causal(), "float32", "fwd_bwd"),
    ("ragged-starts", Causal(), "float16", "fwd_bwd"),
    ("key-lengths", Causal(), "float32", "bwd"),
    ("rows-see-nothing", Causal(), "float32", "fwd_bwd"),
    ("short-k", Causal(), "float16", "bwd"),
    ("wide-values", Full(), "float32", "fwd_bwd"),
]


def counted(problem: Problem, inputs: dict[str, Tensor]) -> Cost:
    """What a call is seen to do, as far as it is in the closed form."""
    leaves = [inputs[name].detach().requires_grad_(problem.needs_gradients) for name in "qkv"]
    operands, flops, lifetimes = OperandBytes(), FlopCounter(), LifetimeTracker()
    lifetimes.hold([*leaves, *(x for name, x in inputs.items() if name == "grad_out")])
    with lifetimes, trace_kernels() as trace:
        out = linear_forward(*leaves, problem=problem) if problem.mode == "bwd" else None
        trace.begin_call()
        gc.collect()  # the interpreter's launches hold on to their arguments
        before = lifetimes.live_bytes
        lifetimes.reset_peak()
        with Together(operands, flops):
            out = linear_forward(*leaves, problem=problem) if out is None else out
            if problem.needs_gradients:
                torch.autograd.grad(out, leaves, inputs["grad_out"])
    return Cost(
        flops=0,
        compulsory_bytes=0,
        executed_flops=flops.flops,
        operand_bytes=operands.total_bytes,
        requested_bytes=trace.requested_bytes,
        peak_bytes=lifetimes.peak_bytes - before,
    )


FIGURES = attrgetter("executed_flops", "operand_bytes", "requested_bytes", "peak_bytes")


def seen_in(problem: Problem) -> Cost:
    return counted(problem, make_inputs(problem, seed=0))


def problem_of(name: str, mask: Mask, dtype: str, mode: str, chunk_size: int) -> Problem:
    shape = {**DEFAULTS, **SHAPES[name], "options": {"chunk_size": chunk_size}}
    return Problem(**shape, mask=mask, dtype=dtype, mode=mode)


@pytest.mark.parametrize(("name", "mask", "dtype", "mode"), ORDINARY)
def test_costs_equal_what_is_counted(name: str, mask: Mask, dtype: str, mode: str) -> None:
    problem = problem_of(name, mask, dtype, mode, 64)
    assert FIGURES(kernel_cost(problem)) == FIGURES(seen_in(problem))


ALL = [
    (name, mask, mode)
    for i, name in enumerate(sorted(set(SHAPES) - {"scale", "n1000"}))
    for j, mask in enumerate((Causal(), Full()))
    for mode in ("fwd", ("bwd", "fwd_bwd")[(i + j) % 2])
]
"""Both modes with gradients run the same kernels: each shape has one under each mask."""


@pytest.mark.long
@pytest.mark.parametrize(("name", "mask", "mode"), ALL)
def test_all_costs_equal_what_is_counted(name: str, mask: Mask, mode: str) -> None:
    problem = problem_of(name, mask, "float16", mode, 32)
    assert FIGURES(kernel_cost(problem)) == FIGURES(seen_in(problem))


def test_several_blocks_of_columns() -> None:
    problem = Problem(seqlen_q=40, seqlen_k=60, num_heads=2, num_kv_heads=1, head_dim=40, head_dim_v=24)
    tile = LinearTile(32, 16, 16, 1, 1)
    inputs = make_inputs(problem, seed=0)
    leaves = [inputs[name].requires_grad_() for name in "qkv"]
    with trace_kernels() as trace, FlopCounter() as flops:
        with_tile(leaves, problem, tile).sum().backward()
    form = (problem.query_starts, problem.key_limits, True)
    shape = make_shape((2, 1), (40, 60), (40, 24), 4, form, tile)
    # The states of the keys are computed twice.
    operators = ("states", "output", "states", "dq", "query_states", "dkdv")
    work = [operator_work(shape, operator) for operator in operators]
    assert trace.requested_bytes == sum(requested for requested, _, _ in work)
    assert flops.flops == sum(executed for _, executed, _ in work)


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_a_prediction_for_cuda_sees_one_operator_a_step(mode: str) -> None:
    """A million tokens on fake tensors: what is predicted is the closed form of the kernels."""
    seqlen = 1 << 20
    problem = Problem(
        seqlen_q=seqlen, num_heads=8, num_kv_heads=2, dtype="bfloat16", device="cuda", mode=mode
    )
    operands, lifetimes, theirs = OperandBytes(), LifetimeTracker(), FlopCounterMode(display=False)
    with FakeTensorMode():
        inputs = [torch.empty(1, heads, seqlen, 64, dtype=torch.bfloat16) for heads in (8, 2, 2)]
        grad_out = torch.empty_like(inputs[0])
        inputs = [x.requires_grad_(problem.needs_gradients) for x in inputs]
        lifetimes.hold([*inputs, grad_out])
        with lifetimes:
            out = LINEAR.attention(*inputs, problem=problem).out if mode == "bwd" else None
        before = lifetimes.live_bytes
        lifetimes.reset_peak()
        with theirs, Together(lifetimes, operands):
            out = LINEAR.attention(*inputs, problem=problem).out if out is None else out
            if problem.needs_gradients:
                torch.autograd.grad(out, inputs, grad_out)
    forward, backward = ["states", "output"], ["states", "dq", "query_states", "dkdv"]
    ran = {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[mode]
    assert operands.operators == [f"attnbench.linear_{name}" for name in ran]
    cost = LINEAR.cost(problem)
    assert operands.total_bytes == cost.operand_bytes
    assert lifetimes.peak_bytes - before == cost.peak_bytes
    assert theirs.get_total_flops() == cost.executed_flops


def test_a_step_costs_what_is_counted() -> None:
    shape: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 24, "head_dim_v": 40}
    chunk = Problem(seqlen_q=4, batch=2, dtype="float16", **shape)
    inputs = make_inputs(chunk, seed=0)
    q, k, v = (inputs[name] for name in "qkv")
    state = states.new_state(LINEAR, chunk, 8)
    tile = linear_tile_for(chunk, "forward")
    with trace_kernels() as trace, OperandBytes() as operands, FlopCounter() as flops:
        torch.ops.attnbench.linear_step(q, k, v, state.sums, chunk.key_limits, tile)
    cost = step_cost(chunk)
    assert cost.requested_bytes == trace.requested_bytes
    assert cost.operand_bytes == operands.total_bytes
    assert cost.executed_flops == flops.flops


def test_on_cuda_a_step_is_costed_by_its_kernel_whatever_the_context() -> None:
    costs = [
        LINEAR.cost(Problem(seqlen_q=1, seqlen_k=n, device="cuda", dtype="bfloat16", mode="decode"))
        for n in (64, 1 << 17)
    ]
    assert costs[0].theory() == costs[1].theory()
    assert costs[0].requested_bytes == 8 * 4 + 2 * 4 * 8 * 64 * 65 + 2 * (8 + 8) * (64 + 64)


def secant(costs: list[Cost], name: str) -> float:
    small, large = (getattr(cost, name) for cost in costs)
    return math.log(large / small) / math.log(16)


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mask", [Causal(), Full()], ids=["causal", "full"])
def test_costs_grow_with_the_sequence(mode: str, device: str, mask: Mask) -> None:
    costs = [LINEAR.cost(Problem(seqlen_q=n, device=device, mode=mode, mask=mask)) for n in (8192, 131072)]
    names = ["flops", "executed_flops", "compulsory_bytes"]
    names += ["requested_bytes", "operand_bytes"] if device == "cuda" else []
    for name in names:
        assert secant(costs, name) == pytest.approx(1, abs=0.02), name


def test_counts_grow_with_the_sequence() -> None:
    found = []
    for n in (1024, 4096):
        problem = Problem(seqlen_q=n, num_heads=1, head_dim=16, mode="fwd_bwd", dtype="float16")
        leaves = [make_inputs(problem, seed=0)[name].requires_grad_() for name in "qkv"]
        with trace_kernels(sample_kernels(KERNELS, problem)) as trace, FlopCounter() as flops:
            linear_forward(*leaves, problem=problem).sum().backward()
        found.append((trace.requested_bytes, flops.flops))
    for small, large in zip(*found, strict=True):
        assert math.log(large / small) / math.log(4) == pytest.approx(1, abs=0.02)


SAMPLED = {
    "plain": {"seqlen_q": 700},
    "full": {"seqlen_q": 600, "mask": Full()},
    "positions": {"seqlen_q": 500, "seqlen_k": 600, "batch": 2, "query_start": (40, 300), "num_heads": 2},
}


@pytest.mark.parametrize("shape", SAMPLED.values(), ids=SAMPLED)
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_a_sample_of_programs_gives_all_bytes_and_right_rows(shape: dict[str, Any], mode: str) -> None:
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "options": {"chunk_size": 64}, **shape}
    problem = Problem(mode=mode, **shape)
    inputs = make_inputs(problem, seed=0)
    leaves = [inputs[name].requires_grad_(problem.needs_gradients) for name in "qkv"]
    with trace_kernels(sample_kernels(KERNELS, problem)) as trace:
        out = linear_forward(*leaves, problem=problem)
        if problem.needs_gradients:
            torch.autograd.grad(out, leaves, inputs["grad_out"])
    assert trace.requested_bytes == kernel_cost(problem).requested_bytes
    assert trace.programs_run < trace.programs_total / 2
    expected = truth(LINEAR_ELU, *(x.detach() for x in leaves), problem=problem).out
    rows = torch.from_numpy(trace.computed_rows(problem.batch, problem.num_heads, problem.seqlen_q))
    assert 0 < rows.sum() < rows.numel()
    torch.testing.assert_close(out.detach()[rows].double(), expected[rows], rtol=1e-5, atol=1e-5)


def test_65536_tokens_in_float16_keep_their_normaliser() -> None:
    """φ(1) = 2 a key: the normaliser of each feature ends at 131072, twice the largest float16."""
    problem = Problem(seqlen_q=1 << 16, num_heads=1, head_dim=16, dtype="float16")
    inputs = make_inputs(problem, seed=0)
    q, k, v = inputs["q"], torch.ones_like(inputs["k"]), 1 + inputs["v"].abs()
    with trace_kernels(sample_kernels(KERNELS, problem)) as trace:
        out = linear_forward(q, k, v, problem=problem)
    rows = torch.from_numpy(trace.computed_rows(1, 1, 1 << 16))[0, 0]
    positions = torch.arange(1, (1 << 16) + 1, dtype=torch.float64)
    expected = (v[0, 0].double().cumsum(0) / positions[:, None])[rows]
    assert rows[-1]
    torch.testing.assert_close(out[0, 0, rows].double(), expected, rtol=1e-3, atol=0)
