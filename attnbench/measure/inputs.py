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

Family = Callable[[str, tuple[int, ...], torch.Generator], Tensor]

OUTLIERS, OUTLIER_DEVIATION = 0.001, 10.0
LOGIT_DEVIATION = 200.0
TAIL_DEGREES = 3


def _normal(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """N(0, 1). Easy data, such as zeros, would draw less power."""
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def _outlier(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """N(0, 1) + N(0, 100) · Bernoulli(0.001), 100 the variance (FlashAttention-3, arXiv 2407.08608)."""
    usual, rare = (_normal(name, shape, generator) for _ in range(2))
    chosen = torch.rand(shape, generator=generator) < OUTLIERS
    return usual + OUTLIER_DEVIATION * rare * chosen


def _large_logits(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """N(0, 1), q times 200: so are logits at the default scale, the largest of a head near ±1000.

    Products of 64 to 256 unscaled elements stay far below float16's 65504.
    """
    return _normal(name, shape, generator) * (LOGIT_DEVIATION if name == "q" else 1.0)


def _long_tail(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Z / √χ²₃ = t₃ / √3: Student's t with 3 degrees of freedom at variance 1.

    The heaviest tail among integer degrees that has a variance, so that logits have a size; the largest of
    10⁸ draws is near 300.
    """
    normal = _normal(name, shape, generator)
    chi = sum(_normal(name, shape, generator).square() for _ in range(TAIL_DEGREES))
    return normal / chi**0.5


def _constant(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """1: each visible key weighs the same, so out is 1, lse is √D + ln(keys), and dq and dk are 0."""
    return torch.ones(shape, dtype=torch.float32)


FAMILIES: dict[str, Family] = {
    "normal": _normal,
    "outlier": _outlier,
    "large-logits": _large_logits,
    "long-tail": _long_tail,
    "constant": _constant,
}
"""Distributions of q, k and v by name; each draws float32 numbers. An upstream gradient is N(0, 1) in all."""


def draw(family: str, shape: tuple[int, ...], dtype: str, *, seed: int, name: str) -> Tensor:
    """Return the tensor called ``name`` of this family, shape and dtype, on the CPU.

    Raises:
        UsageError: no family of that name.
    """
    if family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UsageError(f"unknown inputs {family!r}{nearest(family, FAMILIES)}; tensors can be {known}")
    of = _normal if name == "grad_out" else FAMILIES[family]
    return of(name, shape, generator_for(seed, name)).to(getattr(torch, dtype))


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
