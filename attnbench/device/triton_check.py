"""Whether Triton works here: `python -m attnbench.device.triton_check interpret|compile` tries a kernel.

`interpret` needs `TRITON_INTERPRET=1` in the environment; `compile` targets an NVIDIA GPU that need not be
there. It runs in a process of its own, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import sys

import triton
import triton.language as tl

BLOCK = 16


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def add_one(x, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """x[i] += 1 for i < size."""
    i = tl.arange(0, size)
    tl.store(x + i, tl.load(x + i) + 1)


def interpret() -> None:
    """Run the kernel on the CPU and check what it wrote."""
    import torch

    x = torch.arange(float(BLOCK))
    add_one[(1,)](x, BLOCK)
    if not torch.equal(x, torch.arange(float(BLOCK)) + 1):
        raise ValueError("the interpreter computed a wrong sum")


def compile_ahead() -> None:
    """Compile the kernel for compute capability 8.0."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(fn=add_one, signature={"x": "*fp32", "size": "constexpr"}, constexprs={"size": BLOCK})
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32))
    if not compiled.asm["cubin"]:
        raise ValueError("the compiler made no binary")


if __name__ == "__main__":
    {"interpret": interpret, "compile": compile_ahead}[sys.argv[1]]()
