"""PyTorch's FlexAttention: softmax under any mask, as one compiled kernel that skips hidden tiles.

The mask's own predicate is the ``mask_mod``; which tiles it touches follows from the mask's band in closed
form, and by enumeration for other masks. Every problem is compiled once, for seconds, and then kept. Source:
FlexAttention, arXiv 2412.05496.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from attnbench.contract.cost import Cost, compulsory_bytes, useful_flops
from attnbench.contract.hidden import zero_hidden
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.inputs import check_inputs
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX

from ._flex_blocks import block_mask_of

Attend = Callable[[Tensor, Tensor, Tensor], Any]

NARROWEST_CUDA_HEAD = 16
MOST_COMPILED = 64
"""Compiled problems kept by a process."""


def _function(problem: Problem, device: str) -> Attend:
    """Return ``flex_attention`` with everything but q, k and v of the problem filled in."""
    p = problem
    form: dict[str, Any] = {
        "block_mask": block_mask_of(p, torch.device(device)),
        "scale": p.softmax_scale,
        "enable_gqa": p.group_size > 1,
        "return_aux": AuxRequest(lse=True) if p.option("return_lse", False) else None,
    }

    def flex(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, **form)

    # PyTorch's compiler counts recompilations by code object, and gives up after eight of them.
    flex.__code__ = flex.__code__.replace()
    return flex


@lru_cache(maxsize=MOST_COMPILED)
def _compiled(problem: Problem, device: str) -> Attend:
    return torch.compile(_function(problem, device), dynamic=False, fullgraph=True)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """``softmax(q kᵀ · scale + mask) v`` by PyTorch's compiler.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` → out ``[B, H, Sq, Dv]``; with the option
    ``return_lse`` (CUDA alone) also ``lse`` ``[B, H, Sq]`` in float32. Rows that see no key give 0 and -inf.

    Raises:
        NotImplementedError: the tensors are fake.
    """
    check_inputs(q, k, v, problem)
    k, v = zero_hidden(k, v, problem)
    if isinstance(q, FakeTensor):
        raise NotImplementedError("FlexAttention is compiled, and only for tensors that hold numbers")
    found = _compiled(problem, str(q.device))(q, k, v)
    if isinstance(found, tuple):
        out, auxiliary = found
        return AttentionOutput(out, auxiliary.lse)
    return AttentionOutput(found)


def unsupported(problem: Problem) -> list[str]:
    """Return what FlexAttention lacks on the device, and what this machine lacks to compile it."""
    p, reasons = problem, []
    if 0 in (p.batch, p.seqlen_q, p.seqlen_k, p.head_dim, p.head_dim_v):
        reasons.append("FlexAttention wants no empty dimension")
    if p.device == "cpu":
        if p.needs_gradients:
            reasons.append("FlexAttention has no backward pass on the CPU")
        if p.option("return_lse", False):
            reasons.append("FlexAttention returns no lse on the CPU")
        reasons += _lacking_on_cpu()
    elif min(p.head_dim, p.head_dim_v) < NARROWEST_CUDA_HEAD:
        reasons.append(f"FlexAttention wants heads of at least {NARROWEST_CUDA_HEAD} on CUDA")
    return reasons


def _lacking_on_cpu() -> list[str]:
    """Return why PyTorch's compiler cannot make the CPU's kernel here; empty if it can."""
    reasons = []
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        reasons.append(f"FlexAttention is compiled by a C++ compiler on the CPU, and there is no {compiler}")
    if not torch.cpu._is_avx2_supported():
        reasons.append("FlexAttention on the CPU wants AVX2")
    return reasons


def cost(problem: Problem) -> Cost:
    """Useful FLOPs and compulsory bytes; what the compiled kernel does beyond them is not seen."""
    return Cost(
        flops=useful_flops(problem),
        compulsory_bytes=compulsory_bytes(problem),
        leading={"flops": "2*B*H*n*m*(d+e)"},
    )


IMPLEMENTATION = Implementation(
    name="flex",
    summary="PyTorch's FlexAttention, compiled for each problem; the mask's predicate is compiled in",
    paper="FlexAttention, arXiv 2412.05496",
    semantics=SOFTMAX,
    supports=frozenset(
        {
            *("device:cpu", "device:cuda", "mask:*"),
            *("dtype:bfloat16", "dtype:float16", "dtype:float32"),
            *("backward", "lse", "scale", "value-dim", "grouped-heads"),
            *("cross-lengths", "key-lengths", "query-start"),
        }
    ),
    complexity=Complexity(time="O(n²·d)", memory="O(n·d)"),
    attention=attention,
    cost=cost,
    unsupported=unsupported,
    compiled=True,
)
