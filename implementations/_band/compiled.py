"""Softmax attention under a band as `attnbench::band_attention`, one operator of a compiled program."""

from torch import Tensor

from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.problem import Problem
from attnbench.implementations._shared.one_operator import one_operator

from .attention import band_backward, band_forward
from .cost import band_cost


def _wants_lse(problem: Problem) -> bool:
    return bool(problem.option("return_lse", False))


def _forward(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return out and lse, which is empty if the problem does not ask for it."""
    out, lse = band_forward(q, k, v, problem)
    return out, out.new_empty(0) if lse is None else lse


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: None,
    lse: None,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    problem: Problem,
) -> tuple[Tensor, Tensor, Tensor]:
    return band_backward(q, k, v, grad_out, grad_lse if _wants_lse(problem) else None, problem)


_operator = one_operator(
    "band_attention",
    _forward,
    _backward,
    fills_rows=_wants_lse,
    differentiates_rows=True,
    keeps_results=False,
    cost=band_cost,
)


def band_operator(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> AttentionOutput:
    """As ``band_attention``."""
    out, lse = _operator(q, k, v, problem)
    return AttentionOutput(out, lse if _wants_lse(problem) else None)
