"""Sliding-window attention: each query sees the keys around it, and only those are ever multiplied.

Exact softmax attention under a band, in time O(n·W·d) and not as a masked n × n, forward and backward. On
the CPU in PyTorch operators on blocks of queries; on CUDA by the FlashAttention kernels, whose loops run over
the band alone.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from attnbench.contract.cost import Cost
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.inputs import check_inputs
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX

from ._band.attention import band_attention
from ._band.cost import band_cost
from ._flash.cost import cost as kernel_cost
from ._flash.kernels import KERNELS
from ._flash.kernels import configuration as kernel_configuration
from ._flash.tiles import kernel_faults


def _kernel_runs(problem: Problem) -> bool:
    """Whether the kernels take the problem.

    The problem says it, not the tensors: a prediction for CUDA runs on fake tensors of the CPU.
    """
    return problem.device == "cuda" and problem.dtype != "float64" and not kernel_faults(problem)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """``softmax(q kᵀ · scale) v`` over the ``window_size`` keys around each query.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` → out ``[B, H, Sq, Dv]``, and ``lse``
    ``[B, H, Sq]`` in float32 (float64 for float64) if the problem asks for it. Rows that see no key give 0
    and -inf. Sources: Longformer, arXiv 2004.05150; Mistral 7B, arXiv 2310.06825.
    """
    check_inputs(q, k, v, problem)
    if _kernel_runs(problem):
        from ._flash.attention import flash_attention  # loads triton

        return flash_attention(q, k, v, problem=problem)
    if torch.compiler.is_compiling():
        from ._band.compiled import band_operator

        return band_operator(q, k, v, problem)
    return band_attention(q, k, v, problem)


def cost(problem: Problem) -> Cost:
    """Exact counts of whichever path runs: the band path in tiles of 32 queries, or the kernels."""
    return kernel_cost(problem) if _kernel_runs(problem) else band_cost(problem)


def configuration(problem: Problem) -> dict[str, dict[str, int]]:
    """Return the tiles of the kernels, where they run."""
    return kernel_configuration(problem) if _kernel_runs(problem) else {}


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
    kernels=KERNELS,
    runs_kernels=_kernel_runs,
    configuration=configuration,
)
