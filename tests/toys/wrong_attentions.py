"""Attentions that are each wrong in one way, so that what checks them can be seen to notice."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.contract.cost import Cost, compulsory_bytes, useful_flops
from attnbench.contract.hidden import visible_matrix
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX


def _scores(q: Tensor, k: Tensor, problem: Problem) -> Tensor:
    return q @ k.transpose(-1, -2) * problem.softmax_scale


def _masked(scores: Tensor, problem: Problem) -> Tensor:
    return scores.masked_fill(~visible_matrix(problem, scores.device), -torch.inf)


def sees_the_next(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
    """Each query also sees the key after its own; padding not at all hidden."""
    p = problem
    later = torch.arange(p.seqlen_k) > torch.arange(p.seqlen_q)[:, None] + 1
    scores = _scores(q, k, p)
    scores = scores.masked_fill(later, -torch.inf) if p.mask.name == "causal" else scores
    return scores.softmax(dim=-1) @ v


def unnormalised(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
    """Weights that add up to n."""
    return _masked(_scores(q, k, problem), problem).softmax(dim=-1) @ v * problem.seqlen_k


def row_of_each_key(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
    """As many rows as keys."""
    return _scores(q, k, problem).softmax(dim=-2).transpose(-1, -2) @ q


def by_distance(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
    """Near keys weigh more: positions, though nothing added them."""
    p = problem
    distance = (torch.arange(p.seqlen_q)[:, None] - torch.arange(p.seqlen_k)).abs()
    return (_scores(q, k, p) - distance.to(q.dtype)).softmax(dim=-1) @ v


def one_key_after_the_other(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
    """The right result, by a chain as long as there are keys."""
    out, total = torch.zeros_like(q), q.new_zeros(*q.shape[:3], 1)
    for key in range(k.shape[2]):
        weight = _scores(q, k[:, :, key : key + 1], problem).exp()
        out, total = out + weight * v[:, :, key : key + 1], total + weight
    return out / total


def products_kept(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
    """The right result, by all n·n·d products of components at once."""
    products = q[:, :, :, None] * k[:, :, None]
    return (products.sum(dim=-1) * problem.softmax_scale).softmax(dim=-1) @ v


Core = Callable[[Tensor, Tensor, Tensor, Problem], Tensor]


def _implementation(core: Core) -> Implementation:
    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
    ) -> AttentionOutput:
        return AttentionOutput(core(q, k, v, problem))

    return replace(TEMPLATE, name=core.__name__.replace("_", "-"), attention=attention)


def _cost(problem: Problem) -> Cost:
    return Cost(flops=useful_flops(problem), compulsory_bytes=compulsory_bytes(problem))


def _nothing(*args: Any, **kwargs: Any) -> AttentionOutput:
    raise NotImplementedError


TEMPLATE = Implementation(
    name="template",
    summary="Wrong in one way",
    paper="none",
    semantics=SOFTMAX,
    supports=frozenset(
        {"backward", "cross-lengths", "device:cpu", "dtype:float32", "dtype:float64", "key-lengths", "mask:*"}
    ),
    complexity=Complexity(time="O(n²·d)", memory="O(n²)"),
    attention=_nothing,
    cost=_cost,
)
IMPLEMENTATIONS = tuple(
    map(
        _implementation,
        (
            sees_the_next,
            unnormalised,
            row_of_each_key,
            by_distance,
            one_key_after_the_other,
            products_kept,
        ),
    )
)
