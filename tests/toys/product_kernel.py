"""Somebody's own file with a Triton kernel, q kᵀ in tiles, for `attnbench kernels ./product_kernel.py`."""

# mypy: disable-error-code="no-untyped-def"

from collections.abc import Sequence
from dataclasses import replace

import torch
import triton
import triton.language as tl

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import KernelSpec
from attnbench.contract.launch import Launch, meta_inputs
from attnbench.contract.problem import Problem

BLOCK = 64


@triton.jit
def product_kernel(q, k, out, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out ``[BLOCK, BLOCK] = q [BLOCK, size] kᵀ [size, BLOCK]`` in steps of WIDTH."""
    rows, steps = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    total = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for start in range(0, size, WIDTH):
        columns = start + steps
        left = tl.load(q + rows[:, None] * size + columns[None, :])
        right = tl.load(k + rows[None, :] * size + columns[:, None])
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(out + rows[:, None] * BLOCK + rows[None, :], total)


def product_launch(problem: Problem, **options: int) -> Launch:
    """The launch for the shapes of a problem."""
    q, k, _ = meta_inputs(problem)
    out = torch.empty(BLOCK, BLOCK, device="meta")
    arguments = {"q": q, "k": k, "out": out, "size": 4096, "WIDTH": problem.head_dim, "BLOCK": BLOCK}
    return Launch((1,), arguments, {"num_warps": 4, "num_stages": 2, "enable_fp_fusion": True, **options})


def variants(problem: Problem, target: str) -> Sequence[Launch]:
    """One launch, in the forward pass."""
    return [product_launch(problem)] if problem.mode == "fwd" else []


NAIVE = get_implementation("naive")
IMPLEMENTATION = replace(
    NAIVE,
    name="product",
    kernels=(KernelSpec(name="product_kernel", function=lambda: product_kernel, variants=variants),),
)
