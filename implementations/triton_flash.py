"""FlashAttention-2 in Triton, forward, backward, decoding: softmax over tiles; memory grows with n, not n².

Compiled on CUDA; on the CPU the same source runs in Triton's interpreter, for numbers and bytes, never for a
latency.
"""

from collections.abc import Mapping

from torch import Tensor

from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.inputs import check_inputs
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX

from ._flash.attention import flash_attention
from ._flash.cost import cost
from ._flash.kernels import KERNELS, configuration
from ._flash.memory import memory_faults
from ._flash.tiles import OPTIONS, SPLITS, kernel_faults


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """``softmax(q kᵀ · scale + mask) v`` by the tiled kernels; see ``flash_attention``."""
    check_inputs(q, k, v, problem)
    return flash_attention(q, k, v, problem=problem)


def unsupported(problem: Problem) -> list[str]:
    """Return the limits of the kernel that the problem passes."""
    reasons = kernel_faults(problem) or memory_faults(problem)
    if problem.device == "cpu" and problem.dtype == "bfloat16":
        reasons.append("Triton's interpreter multiplies bit patterns of bfloat16 (triton-lang/triton#11584)")
    return reasons


def execution(problem: Problem) -> str:
    """``interpreted`` on the CPU, where the kernel has no latency worth the name."""
    return "interpreted" if problem.device == "cpu" else "native"


IMPLEMENTATION = Implementation(
    name="triton-flash",
    summary="FlashAttention-2 in Triton; scores stay on the chip, hidden tiles are skipped",
    paper="FlashAttention-2, arXiv 2307.08691",
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
            "grouped-heads",
            "key-lengths",
            "lse",
            "mask:causal",
            "mask:full",
            "mask:sliding-window",
            "query-start",
            "scale",
            "value-dim",
        }
    ),
    complexity=Complexity(time="O(n²·d)", memory="O(n·d)"),
    attention=attention,
    cost=cost,
    unsupported=unsupported,
    options=dict.fromkeys((*OPTIONS, SPLITS)),
    execution=execution,
    kernels=KERNELS,
    configuration=configuration,
)
