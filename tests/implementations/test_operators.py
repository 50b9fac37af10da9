"""Implementations in a program that PyTorch compiles: one graph, no break, the same numbers and gradients."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.contract.discovery import find_implementations
from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from tests.implementations.conformance import uncompiled

MASKS: list[Mask] = [Full(), Causal(), SlidingWindow(7)]
SHAPES: dict[str, dict[str, Any]] = {
    "square": {},
    "grouped": {"num_heads": 4, "num_kv_heads": 2},
    "ragged": {"batch": 2, "key_lengths": (5, 20)},
    "rows-see-nothing": {"query_start": -3},
}


def cases() -> Iterator[Any]:
    for name, implementation in uncompiled().items():
        for mask in MASKS:
            for shape_name, shape in SHAPES.items():
                problem = Problem(
                    **{"seqlen_q": 20, "num_heads": 2, "head_dim": 16, **shape}, mask=mask, mode="fwd_bwd"
                )
                if not refusals(implementation, problem):
                    # A problem takes a second to compile: every kind of shape once, the rest in the long set.
                    brief = shape_name == "grouped" or (shape_name == "ragged" and mask != Full())
                    yield pytest.param(
                        name,
                        problem,
                        id=f"{name}-{mask.slug}-{shape_name}",
                        marks=[] if brief and not name.startswith("sdpa-") else [pytest.mark.long],
                    )


def leaves(problem: Problem) -> list[Tensor]:
    p, generator = problem, torch.Generator().manual_seed(3)
    return [
        torch.randn(p.batch, heads, 20, 16, generator=generator).requires_grad_()
        for heads in (p.num_heads, p.num_kv_heads, p.num_kv_heads)
    ]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's own doing
@pytest.mark.parametrize(("name", "problem"), list(cases()))
def test_the_compiler_takes_it_in_one_graph(name: str, problem: Problem) -> None:
    """``fullgraph`` raises at any break; the graph of both passes is made, and run operator by operator."""
    attention = find_implementations()[name].attention

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attention(q * 2, k, v, problem=problem).out
        return out.square().sum()

    torch.compiler.reset()
    inputs = leaves(problem)
    expected = torch.autograd.grad(loss(*inputs), inputs)
    actual = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*inputs), inputs)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
