"""The kernels of linear attention as an implementation of their own, interpreted: for tests alone.

What `linear` runs on CUDA, on tensors of the CPU. Shared by the tests in this folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem
from attnbench.implementations._linear.forward import linear_forward
from attnbench.implementations._linear.kernel_cost import kernel_cost
from attnbench.implementations._linear.tiles import LinearTile


def _attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    return AttentionOutput(linear_forward(q, k, v, problem=problem))


LINEAR = get_implementation("linear")
KERNELS = replace(
    LINEAR,
    name="linear-kernels",
    attention=_attention,
    cost=kernel_cost,
    execution=lambda problem: "interpreted",
    runs_kernels=lambda problem: True,
)


def with_tile(
    inputs: Sequence[Tensor], problem: Problem, tile: LinearTile, backward_tile: LinearTile | None = None
) -> Tensor:
    """Run the operators on q, k and v with tiles that are not those of the table."""
    form: Any = (problem.query_starts, problem.key_limits, isinstance(problem.mask, Causal), tile)
    operators, (q, k, v) = torch.ops.attnbench, inputs
    with torch.no_grad():
        states = operators.linear_states(k, v, problem.seqlen_q, *form)
    out: Tensor = operators.linear_output(q, k, v, states, *form, backward_tile or tile)[0]
    return out
