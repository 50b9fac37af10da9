"""The CPU paths of sliding-window and linear as operators of compiled programs."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.implementations._band import compiled as _band  # noqa: F401  registers the operator
from attnbench.implementations._linear import compiled as _linear  # noqa: F401  registers the operator
from attnbench.implementations._shared.one_operator import read_problem, written_problem
from attnbench.measure.inputs import make_inputs

CASES = [
    ("band_attention", "sliding-window", {"mask": SlidingWindow(7), "options": {"return_lse": True}}),
    ("band_attention", "sliding-window", {"mask": SlidingWindow(5, causal=False), "scale": 0.3}),
    ("linear_chunked", "linear", {"mask": Causal(), "batch": 2, "key_lengths": (5, 40)}),
    ("linear_chunked", "linear", {"mask": Full(), "query_start": -3, "options": {"chunk_size": 8}}),
]


def problem_of(given: dict[str, Any]) -> Problem:
    shape: dict[str, Any] = {
        "seqlen_q": 40,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "head_dim_v": 24,
    }
    return Problem(**shape, **given, mode="fwd_bwd")


@pytest.mark.parametrize(("operator", "implementation", "given"), CASES)
def test_a_problem_is_read_as_it_was_written(operator, implementation, given):
    problem = problem_of(given)
    assert read_problem(written_problem(problem)) == problem


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's own doing
@pytest.mark.parametrize(("operator", "implementation", "given"), CASES)
def test_operators_are_what_pytorch_expects_of_them(operator, implementation, given):
    problem = problem_of(given)
    tensors = make_inputs(problem, seed=0)
    leaves = [tensors[name].requires_grad_() for name in ("q", "k", "v")]
    arguments = (*leaves, written_problem(problem))
    found = torch.library.opcheck(getattr(torch.ops.attnbench, operator).default, arguments)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize(("operator", "implementation", "given"), CASES)
def test_the_operator_counts_the_flops_of_what_it_is_made_of(operator, implementation, given):
    """Forward and backward: eager mode, the operator, and the closed form."""
    problem, found = problem_of(given), get_implementation(implementation)
    tensors = make_inputs(problem, seed=0)
    leaves = [tensors[name].requires_grad_() for name in ("q", "k", "v")]

    def eager() -> Tensor:
        return found.attention(*leaves, problem=problem).out

    def as_operator() -> Tensor:
        out: Tensor = getattr(torch.ops.attnbench, operator)(*leaves, written_problem(problem))[0]
        return out

    for function in (eager, as_operator):
        with FlopCounterMode(display=False) as flops:
            torch.autograd.grad(function(), leaves, tensors["grad_out"])
        assert flops.get_total_flops() == found.cost(problem).executed_flops


CHANGES: dict[str, list[dict[str, Any]]] = {
    "triton-flash": [{"scale": 0.1}, {"scale": 0.2}, {"query_start": 3}, {"query_start": 9}],
    "sliding-window": [{"scale": 0.1}, {"scale": 0.2}, {"key_lengths": (30,)}, {"key_lengths": (31,)}],
    "linear": [{"query_start": 1}, {"query_start": 2}, {"options": {"chunk_size": 4}}, {"seqlen_q": 20}],
}


@pytest.mark.parametrize("implementation", CHANGES)
def test_one_compiled_function_takes_one_problem_after_the_other(implementation):
    found, mask = get_implementation(implementation), "causal"
    given = {"name": "sliding-window", "window_size": 8} if implementation == "sliding-window" else mask

    def attend(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
        return found.attention(q, k, v, problem=problem).out

    torch.compiler.reset()
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    for change in CHANGES[implementation]:
        problem = Problem(**{"seqlen_q": 40, "num_heads": 2, "head_dim": 16, "mask": given, **change})
        tensors = make_inputs(problem, seed=0)
        inputs = tensors["q"], tensors["k"], tensors["v"]
        assert torch.equal(compiled(*inputs, problem), attend(*inputs, problem)), change


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's own doing
def test_lse_has_its_gradient_in_a_compiled_program():
    problem, found = problem_of({"mask": SlidingWindow(7)}), get_implementation("sliding-window")
    problem = problem.replace(options={"return_lse": True})
    tensors = make_inputs(problem, seed=0)
    leaves = [tensors[name].requires_grad_() for name in ("q", "k", "v")]

    def loss(*inputs: Tensor) -> Tensor:
        out, lse = found.attention(*inputs, problem=problem)
        assert lse is not None
        return out.square().sum() + lse.sin().sum()

    torch.compiler.reset()
    expected = torch.autograd.grad(loss(*leaves), leaves)
    actual = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*leaves), leaves)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("implementation", ["sliding-window", "linear", "triton-flash"])
def test_a_gradient_penalty_is_refused_and_not_wrong(implementation):
    """Of a sum the upstream gradient is a constant: that of the gradient still is not."""
    mask = SlidingWindow(7) if implementation == "sliding-window" else Causal()
    problem = Problem(seqlen_q=9, num_heads=1, head_dim=16, mask=mask, mode="fwd_bwd")
    tensors = make_inputs(problem, seed=0)
    q = tensors["q"].requires_grad_()
    out = get_implementation(implementation).attention(q, tensors["k"], tensors["v"], problem=problem).out
    (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        (out.sum() + dq.square().sum()).backward()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch's own doing
@pytest.mark.parametrize("implementation", ["sliding-window", "linear", "triton-flash"])
def test_forward_mode_is_refused_and_not_zero(implementation):
    mask = SlidingWindow(7) if implementation == "sliding-window" else Causal()
    problem, found = (
        Problem(seqlen_q=9, num_heads=1, head_dim=16, mask=mask),
        get_implementation(implementation),
    )
    tensors = make_inputs(problem, seed=0)

    def attend(q: Tensor) -> Tensor:
        return found.attention(q, tensors["k"], tensors["v"], problem=problem).out

    with forward_ad.dual_level(), pytest.raises(RuntimeError, match=r"forward mode|jvp"):
        attend(forward_ad.make_dual(tensors["q"], tensors["q"]))


def test_there_is_no_second_derivative():
    problem = problem_of({"mask": SlidingWindow(7)})
    tensors = make_inputs(problem, seed=0)
    leaves = [tensors[name].requires_grad_() for name in ("q", "k", "v")]
    out, _ = torch.ops.attnbench.band_attention(*leaves, written_problem(problem))
    (dq,) = torch.autograd.grad(out.sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dq.sum().backward()
