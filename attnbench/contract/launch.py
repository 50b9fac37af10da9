"""One launch of a GPU kernel as data: what it is called with and how it is compiled.

The code that launches a kernel and the analysis that only compiles it take the same `Launch`, made by one
function: what `attnbench kernels` shows is what runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .problem import Problem

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Launch:
    """``kernel[grid](**arguments, **options)``.

    ``arguments`` by name, constexprs among them; tensors and tensor descriptors may be on the meta device
    where nothing is to run. ``options`` say how to compile: ``num_warps``, ``num_stages``, ``maxnreg``,
    ``enable_fp_fusion``.
    """

    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, kernel: Any) -> Any:
        """Launch ``kernel``, compiled or interpreted; return what Triton compiled, if it did."""
        return kernel[self.grid](**self.arguments, **self.options)


def meta_inputs(problem: Problem) -> "tuple[Tensor, Tensor, Tensor]":
    """Return contiguous q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` without memory.

    They are on the meta device, where Triton takes every address for a multiple of 16.
    """
    import torch

    p, dtype = problem, getattr(torch, problem.dtype)
    return (
        torch.empty(p.batch, p.num_heads, p.seqlen_q, p.head_dim, dtype=dtype, device="meta"),
        torch.empty(p.batch, p.num_kv_heads, p.seqlen_k, p.head_dim, dtype=dtype, device="meta"),
        torch.empty(p.batch, p.num_kv_heads, p.seqlen_k, p.head_dim_v, dtype=dtype, device="meta"),
    )
