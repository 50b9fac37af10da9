"""A kernel of exponentials, to find out how fast a GPU computes them. In: floats. Out: each after a chain.

A chain keeps its value in a register, so that neither memory nor the launch is what is measured. Loaded where
a GPU is measured, since Triton decides at its import whether it interprets.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
CHAIN = 256
"""Exponentials an element: 8 bytes of traffic take far less time than these."""


# Triton reads the annotations of a kernel, so its arguments cannot have ours.
@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def exp2_chain(x, chain: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """x[i] = f(f(…f(x[i]))), ``chain`` times f(y) = 2^-y, which stays between 0 and 1."""
    place = tl.program_id(0) * block + tl.arange(0, block)
    y = tl.load(x + place)
    for _ in range(chain):
        y = tl.exp2(-y)
    tl.store(x + place, y)


def run_exp2_chain(x: Tensor) -> None:
    """Replace each element of ``x``, a multiple of ``BLOCK`` of them, by ``CHAIN`` exponentials of it."""
    if x.numel() % BLOCK or x.dtype != torch.float32 or not x.is_contiguous():
        raise ValueError(f"takes float32 in whole blocks of {BLOCK}, not {x.numel()} of {x.dtype}")
    exp2_chain[(x.numel() // BLOCK,)](x, CHAIN, BLOCK, num_warps=4)
