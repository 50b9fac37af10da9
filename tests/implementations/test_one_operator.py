"""The CPU paths of sliding-window and linear as operators of compiled programs."""

from typing import Any

import pytest
import torch
from torch import Tensor
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
    torch.library.opcheck(getattr(torch.ops.attnbench, operator).default, (*leaves, written_problem(problem)))


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


def test_there_is_no_second_derivative():
    problem = problem_of({"mask": SlidingWindow(7)})
    tensors = make_inputs(problem, seed=0)
    leaves = [tensors[name].requires_grad_() for name in ("q", "k", "v")]
    out, _ = torch.ops.attnbench.band_attention(*leaves, written_problem(problem))
    (dq,) = torch.autograd.grad(out.sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dq.sum().backward()
