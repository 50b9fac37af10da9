"""Sliding-window attention: each query sees the keys around it, and only those are ever multiplied.

Exact softmax attention under a band, in time O(n·W·d) and not as a masked n × n. In PyTorch operators on
blocks of queries; on CUDA, where no gradient is asked for, by the FlashAttention kernel, which skips hidden
tiles.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from attnbench.contract.cost import Cost
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX

from ._band import band_attention
from ._band_cost import band_cost
from ._flash_cost import cost as kernel_cost
from ._flash_kernels import FORWARD
from ._flash_tiles import kernel_faults


def _kernel_runs(problem: Problem) -> bool:
    """Whether the kernel takes the problem.

    The problem says it, not the tensors: a prediction for CUDA runs on fake tensors of the CPU.
    """
    p = problem
    return p.device == "cuda" and not p.needs_gradients and p.dtype != "float64" and not kernel_faults(p)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """``softmax(q kᵀ · scale) v`` over the ``window_size`` keys around each query.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` → out ``[B, H, Sq, Dv]``, and ``lse``
    ``[B, H, Sq]`` in float32 (float64 for float64) if the problem asks for it. Rows that see no key give 0
    and -inf. Sources: Longformer, arXiv 2004.05150; Mistral 7B, arXiv 2310.06825.
    """
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if _kernel_runs(problem) and not recorded:
        from ._flash_forward import flash_forward  # loads triton

        return flash_forward(q, k, v, problem=problem)
    return band_attention(q, k, v, problem)


def cost(problem: Problem) -> Cost:
    """Exact counts of whichever path runs: the band path in tiles of 32 queries, or the kernel."""
    return kernel_cost(problem) if _kernel_runs(problem) else band_cost(problem)


IMPLEMENTATION = Implementation(
    name="sliding-window",
    summary="Softmax over a window of keys, block by block; nothing outside the band is computed",
    paper="Longformer, arXiv 2004.05150",
    semantics=SOFTMAX,
    supports=frozenset(
        {
            "backward",
            "cross-lengths",
            "decode",
            "device:cpu",
            "device:cuda",
            "dtype:bfloat16",
            "dtype:float16",
            "dtype:float32",
            "dtype:float64",
            "grouped-heads",
            "key-lengths",
            "lse",
            "mask:sliding-window",
            "query-start",
            "scale",
            "value-dim",
        }
    ),
    complexity=Complexity(time="O(n·W·d)", memory="O(n·d)"),
    attention=attention,
    cost=cost,
    kernels=(FORWARD,),
    runs_kernels=_kernel_runs,
)
