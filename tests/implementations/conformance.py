"""The problems every implementation is held to, and how a result is graded.

Shared by the tests in this folder.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from attnbench.contract.discovery import find_implementations
from attnbench.contract.implementation import AttentionOutput, Implementation, refusals
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import Semantics
from attnbench.measure.agreement import grade_outputs
from attnbench.measure.inputs import make_inputs
from attnbench.measure.record import Agreement
from attnbench.measure.truth import Yardstick, make_yardstick

FIVE = ("naive", "sdpa", "triton-flash", "sliding-window", "linear")
LENGTHS = (1, 2, 7, 63, 64, 65, 127, 129, 1000)
DEFAULTS: dict[str, Any] = {"num_heads": 2, "head_dim": 32, "head_dim_v": 32}

SHAPES: dict[str, dict[str, Any]] = {
    **{f"n{n}": {"seqlen_q": n} for n in LENGTHS},
    "short-q": {"seqlen_q": 5, "seqlen_k": 129},
    "short-k": {"seqlen_q": 129, "seqlen_k": 40},
    "one-query": {"seqlen_q": 1, "seqlen_k": 65},
    "cache-16-filled-6-chunk-2": {"seqlen_q": 2, "seqlen_k": 16, "query_start": 4, "key_lengths": (6,)},
    "cache-start-alone": {"seqlen_q": 2, "seqlen_k": 16, "query_start": 6},
    "grouped": {"seqlen_q": 65, "num_heads": 6, "num_kv_heads": 2},
    "multi-query": {"seqlen_q": 33, "num_heads": 4, "num_kv_heads": 1, "batch": 2},
    "key-lengths": {"seqlen_q": 70, "batch": 4, "key_lengths": (0, 1, 33, 70)},
    "ragged-starts": {
        "seqlen_q": 9,
        "seqlen_k": 80,
        "batch": 3,
        "query_start": (0, 40, 71),
        "key_lengths": (9, 49, 80),
    },
    "rows-see-nothing": {"seqlen_q": 40, "batch": 2, "query_start": (-15, 0)},
    "narrow-values": {"seqlen_q": 50, "head_dim": 32, "head_dim_v": 16},
    "wide-values": {"seqlen_q": 50, "head_dim": 16, "head_dim_v": 40},
    "scale": {"seqlen_q": 40, "scale": 0.7},
    "width-80": {"seqlen_q": 66, "head_dim": 80, "head_dim_v": 80, "num_heads": 1},
}
WINDOWS = (1, 7, 64, 2000)


def uncompiled() -> dict[str, Implementation]:
    """Return the implementations whose calls compile nothing; others take seconds for each problem, and have
    tests of their own.
    """
    return {name: found for name, found in find_implementations().items() if not found.compiled}


def masks_for(implementation: Implementation) -> list[Mask]:
    """Full, causal and windows, as far as the implementation supports them."""
    every: list[Mask] = [Full(), Causal()]
    every += [SlidingWindow(size) for size in WINDOWS] + [SlidingWindow(7, causal=False)]
    kinds = implementation.supports
    return [mask for mask in every if f"mask:{mask.name}" in kinds or "mask:*" in kinds]


def _is_covered_elsewhere(name: str, mask: Mask, shape_name: str) -> bool:
    """Dense implementations treat every window alike, and a forced backend of SDPA is the same code as
    ``sdpa``: a sample is enough.
    """
    if name.startswith("sdpa-"):
        return mask not in (Causal(), SlidingWindow(1)) or shape_name in (
            "n7",
            "n63",
            "n64",
            "n129",
            "multi-query",
        )
    if name == "triton-flash" and mask == SlidingWindow(2000):  # causal, bit for bit: a test of its own
        return shape_name != "n129"
    return name in ("naive", "sdpa") and mask.name == "sliding-window" and mask != SlidingWindow(7)


def _modes_for(name: str, mask: Mask, modes: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out the forward mode of interpreted kernels, which are slow, but under one mask: the mode with
    gradients grades the same forward kernel.
    """
    if name != "triton-flash" or "fwd_bwd" not in modes or mask == Causal():
        return modes
    return tuple(mode for mode in modes if mode != "fwd")


def grid(dtypes: tuple[str, ...], modes: tuple[str, ...]) -> Iterator[tuple[str, Problem, str]]:
    """Yield ``(implementation, problem, id)`` for everything that is supported.

    What must be is asserted elsewhere.
    """
    for name, implementation in uncompiled().items():
        for mask in masks_for(implementation):
            for shape_name, shape in SHAPES.items():
                if _is_covered_elsewhere(name, mask, shape_name):
                    continue
                for dtype in dtypes:
                    for mode in _modes_for(name, mask, modes):
                        problem = Problem(**{**DEFAULTS, **shape}, mask=mask, dtype=dtype, mode=mode)
                        if "lse" in implementation.supports:
                            problem = problem.replace(options={"return_lse": True})
                        if not refusals(implementation, problem):
                            yield name, problem, f"{name}-{mask.slug}-{shape_name}-{dtype}-{mode}"


@lru_cache(maxsize=4096)
def inputs_for(problem: Problem) -> dict[str, Tensor]:
    """Return the problem's q, k, v and upstream gradient."""
    return make_inputs(problem, seed=42)


@lru_cache(maxsize=4096)
def _yardstick(semantics: Semantics, problem: Problem) -> Yardstick:
    return make_yardstick(semantics, problem, inputs_for(problem), rows=None)


def yardstick_for(semantics: Semantics, problem: Problem) -> Yardstick:
    """Return truth and baseline, shared by all implementations of these semantics."""
    return _yardstick(semantics, problem.replace(options={}))


def run(
    implementation: Implementation, problem: Problem, inputs: dict[str, Tensor]
) -> tuple[AttentionOutput, dict[str, Tensor]]:
    """Run it, with gradients of q, k and v (``dq``, ``dk``, ``dv``) where the mode has a backward pass."""
    leaves = [inputs[name].detach().requires_grad_(problem.needs_gradients) for name in ("q", "k", "v")]
    with torch.set_grad_enabled(problem.needs_gradients):
        result = implementation.attention(*leaves, problem=problem)
    if not problem.needs_gradients:
        return result, {}
    found = torch.autograd.grad(result.out, leaves, inputs["grad_out"], allow_unused=True)
    assert all(gradient is not None for gradient in found), "a gradient is missing, not zero"
    gradients = dict(zip(("dq", "dk", "dv"), found, strict=True))
    return AttentionOutput(
        result.out.detach(), None if result.lse is None else result.lse.detach()
    ), gradients


def graded(name: str, problem: Problem) -> Agreement:
    """Run an implementation on its problem and grade everything it returns."""
    implementation = find_implementations()[name]
    inputs = inputs_for(problem)
    result, gradients = run(implementation, problem, inputs)
    assert result.out.dtype == inputs["q"].dtype
    lse_asked = bool(problem.option("return_lse", False))
    if lse_asked:
        assert result.lse is not None
        assert result.lse.dtype == torch.promote_types(inputs["q"].dtype, torch.float32)
    yardstick = yardstick_for(implementation.semantics, problem)
    return grade_outputs(
        result.out,
        result.lse,
        gradients,
        yardstick.truth,
        yardstick.plain,
        dtype=inputs["q"].dtype,
        bounds=yardstick.bounds,
        lse_expected=lse_asked,
    )
