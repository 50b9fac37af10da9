"""The FlashAttention forward kernel as one operator, `attnbench::flash_forward`. In: q, k, v. Out: out, lse.

On CUDA the kernel is compiled; on the CPU it runs in Triton's interpreter alone, where ``TRITON_INTERPRET=1``
must be set before triton is imported. Fake tensors and byte counters see one operator.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime import JITFunction

from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.problem import Problem

from ._flash_cost import effective_band
from ._flash_kernel import flash_forward_kernel
from ._flash_launch import forward_launch
from ._flash_tiles import Tile, tile_for

# `torch.library.custom_op` says the same in fewer words, but its first call imports torch._dynamo: 1.4 s.
_LIBRARY = torch.library.Library("attnbench", "FRAGMENT")
_LIBRARY.define(
    "flash_forward(Tensor q, Tensor k, Tensor v, int[] query_starts, int[] key_limits, "
    "int? left, int? right, float scale, int[] tile) -> (Tensor out, Tensor lse)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def flash_forward(q: Tensor, k: Tensor, v: Tensor, *, problem: Problem) -> AttentionOutput:
    """``softmax(q kᵀ · scale + mask) v`` and its float32 ``lse``, tile by tile; the scores are never held.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``, any strides → out ``[B, H, Sq, Dv]``, lse
    ``[B, H, Sq]``. Rows that see no key give 0 and -inf; keys that no query sees are never read.
    Source: FlashAttention-2, arXiv 2307.08691.

    Raises:
        RuntimeError: gradients are asked for.
        UsageError: the tensors are on the CPU and triton does not interpret.
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise RuntimeError("the FlashAttention kernel has no backward pass; call it under torch.no_grad()")
    band = effective_band(problem)
    starts, limits = problem.query_starts, problem.key_limits
    operator = torch.ops.attnbench.flash_forward
    return AttentionOutput(
        *operator(q, k, v, starts, limits, band.left, band.right, problem.softmax_scale, tile_for(problem))
    )


@torch.library.impl(_LIBRARY, "flash_forward", "CompositeExplicitAutograd")
def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    left: int | None,
    right: int | None,
    scale: float,
    tile: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; ``tile`` is ``(block_q, block_k, num_warps, num_stages)``."""
    interpreted = not isinstance(flash_forward_kernel, JITFunction)
    if q.device.type == "cpu" and not interpreted:
        raise UsageError(
            "on the CPU a Triton kernel needs the interpreter: set TRITON_INTERPRET=1 before importing triton"
        )
    batch, num_heads, seqlen_q, _ = q.shape
    value_dim = v.shape[3]
    shape = (batch, num_heads, seqlen_q)
    if 0 in (batch, seqlen_q, k.shape[2]):
        return q.new_zeros(*shape, value_dim), q.new_full(shape, -math.inf, dtype=torch.float32)
    # The interpreter may run a sample of the programs: a row that none computed must not pass for a result.
    filling = math.nan if interpreted else None
    out, lse = (
        _allocate(q, (*shape, value_dim), q.dtype, filling),
        _allocate(q, shape, torch.float32, filling),
    )
    bounds = _bounds(tuple(query_starts), tuple(key_limits), q.device)
    launch = forward_launch(q, k, v, out, lse, bounds, left, right, scale, Tile(*tile))
    with torch.cuda.device(q.device) if q.device.type == "cuda" else nullcontext():
        launch.run(flash_forward_kernel)
    return out, lse


def _allocate(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype, filling: float | None) -> Tensor:
    if filling is None:
        return like.new_empty(shape, dtype=dtype)
    return like.new_full(shape, filling, dtype=dtype)


@lru_cache(maxsize=256)
def _bounds(query_starts: tuple[int, ...], key_limits: tuple[int, ...], device: torch.device) -> Tensor:
    """First query position and number of keys, ``[B, 2]`` int32; kept, so that calls copy nothing."""
    return torch.tensor([query_starts, key_limits], dtype=torch.int32).t().contiguous().to(device)


def _shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


torch.library.register_fake("attnbench::flash_forward", _shapes, lib=_LIBRARY)
