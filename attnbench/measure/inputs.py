"""The tensors implementations are given. In: shapes, a seed, a family. Out: equal numbers on every device.

All are drawn on the CPU, each by a generator of its own: the same seed, shape and dtype are the same numbers
whatever computes on them. ``inputs_key`` names them; two cases with one key share one truth.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.contract.errors import UsageError, nearest
from attnbench.contract.problem import Problem
from attnbench.model.weights import generator_for

Family = Callable[[tuple[int, ...], torch.Generator], Tensor]


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32)


FAMILIES: dict[str, Family] = {"normal": _normal}
"""Each draws float32 numbers. ``normal`` is N(0, 1): easy data, such as zeros, would draw less power."""


def draw(family: str, shape: tuple[int, ...], dtype: str, *, seed: int, name: str) -> Tensor:
    """Return the tensor called ``name`` of this family, shape and dtype, on the CPU.

    Raises:
        UsageError: no family of that name.
    """
    if family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UsageError(f"unknown inputs {family!r}{nearest(family, FAMILIES)}; tensors can be {known}")
    return FAMILIES[family](shape, generator_for(seed, name)).to(getattr(torch, dtype))


def input_shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Return the shapes ``[B, H, S, D]`` of q, k, v and, where a backward pass runs, of ``grad_out``."""
    queries, keys = (problem.batch, problem.num_heads), (problem.batch, problem.num_kv_heads)
    shapes: dict[str, tuple[int, ...]] = {
        "q": (*queries, problem.seqlen_q, problem.head_dim),
        "k": (*keys, problem.seqlen_k, problem.head_dim),
        "v": (*keys, problem.seqlen_k, problem.head_dim_v),
    }
    if problem.needs_gradients:
        shapes["grad_out"] = (*queries, problem.seqlen_q, problem.head_dim_v)
    return shapes


def make_inputs(problem: Problem, family: str = "normal", *, seed: int = 0) -> dict[str, Tensor]:
    """Return the problem's q, k, v and, where a backward pass runs, ``grad_out``, on the CPU."""
    return {
        name: draw(family, shape, problem.dtype, seed=seed, name=name)
        for name, shape in input_shapes(problem).items()
    }


def inputs_key(problem: Problem, family: str = "normal", *, seed: int = 0) -> str:
    """Return a stable name of the tensors ``make_inputs`` gives: equal keys, equal numbers."""
    shapes = "/".join(f"{name}{'x'.join(map(str, shape))}" for name, shape in input_shapes(problem).items())
    return f"{family}/seed{seed}/{problem.dtype}/{shapes}"
