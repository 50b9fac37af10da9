"""Linear attention in PyTorch operators as `attnbench::linear_chunked`, one of a compiled program."""

from torch import Tensor

from attnbench.contract.problem import Problem
from attnbench.implementations._shared.one_operator import one_operator

from .chunked import chunked_backward, chunked_forward
from .cost import chunks_cost


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    grad_out: Tensor,
    grad_total: None,
    problem: Problem,
) -> tuple[Tensor, Tensor, Tensor]:
    return chunked_backward(q, k, v, out, total, grad_out, problem)


_operator = one_operator(
    "linear_chunked",
    chunked_forward,
    _backward,
    fills_rows=lambda problem: True,
    differentiates_rows=False,
    keeps_results=True,
    cost=chunks_cost,
)


def chunked_operator(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
    """As ``chunked_attention``."""
    return _operator(q, k, v, problem)[0]
