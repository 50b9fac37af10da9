"""The linear-attention kernels as operators, `attnbench::linear_forward` and `attnbench::linear_backward`.

On CUDA the kernels are compiled; on the CPU they run in Triton's interpreter alone, where
``TRITON_INTERPRET=1`` must be set before triton is imported. Fake tensors and byte counters see one operator.
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
from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem

from ._linear_geometry import Geometry, Row, geometry
from ._linear_backward_kernel import linear_dq_kernel, linear_query_states_kernel
from ._linear_keys_kernel import linear_keys_gradient_kernel
from ._linear_kernel import linear_output_kernel, linear_scan_kernel, linear_states_kernel
from ._linear_launch import (
    dq_launch,
    keys_gradient_launch,
    output_launch,
    query_states_launch,
    scan_launch,
    state_size,
    states_launch,
)
from ._linear_tiles import LinearTile, linear_tile_for

_LIBRARY = torch.library.Library("attnbench", "FRAGMENT")
_LIBRARY.define(
    "linear_forward(Tensor q, Tensor k, Tensor v, int[] query_starts, int[] key_limits, bool causal, "
    "int[] tile) -> (Tensor out, Tensor total)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    "linear_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor total, "
    "int[] query_starts, int[] key_limits, bool causal, int[] tile) -> (Tensor dq, Tensor dk, Tensor dv)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def linear_forward(q: Tensor, k: Tensor, v: Tensor, *, problem: Problem) -> Tensor:
    """``φ(q_i) Σ_j φ(k_j)ᵀ v_j / φ(q_i) Σ_j φ(k_j)ᵀ`` over visible keys j, parallel over chunks.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``, any strides → out ``[B, H, Sq, Dv]``. Rows
    that see no key give 0; keys that no query sees are never read. Differentiable once, deterministic.
    Sources: arXiv 2006.16236; in chunks, arXiv 2312.06635.

    Raises:
        UsageError: the tensors are on the CPU and triton does not interpret.
    """
    p = problem
    operator = torch.ops.attnbench.linear_forward
    causal = isinstance(p.mask, Causal)
    out, _ = operator(q, k, v, p.query_starts, p.key_limits, causal, linear_tile_for(p))
    return out


@torch.library.impl(_LIBRARY, "linear_forward", "CompositeExplicitAutograd")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    causal: bool,
    tile: Sequence[int],
) -> tuple[Tensor, Tensor]:
    require_backend(q)
    sizes = LinearTile(*tile)
    where = geometry(query_starts, key_limits, q.shape[2], causal, sizes.chunk_size, sizes.block)
    shape = q.shape[:3]
    if where.key_chunks == 0:
        return q.new_zeros(*shape, v.shape[3]), q.new_ones(shape, dtype=torch.float32)
    bounds = bounds_tensor(where.rows, q.device)
    with on_device(q):
        states = key_states(k, v, where, bounds, causal, sizes)
        out, total = allocate(q, (*shape, v.shape[3]), q.dtype), allocate(q, shape, torch.float32)
        output_launch(q, k, v, states, out, total, bounds, where, causal, sizes).run(linear_output_kernel)
    return out, total


@torch.library.impl(_LIBRARY, "linear_backward", "CompositeExplicitAutograd")
def _backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    causal: bool,
    tile: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    require_backend(q)
    sizes = LinearTile(*tile)
    where = geometry(query_starts, key_limits, q.shape[2], causal, sizes.chunk_size, sizes.block)
    if where.key_chunks == 0:
        return q.new_zeros(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    bounds = bounds_tensor(where.rows, q.device)
    out, total = out.contiguous(), total.contiguous()
    with on_device(q):
        dq, dk, dv = (allocate(x, x.shape, x.dtype) for x in (q, k, v))
        drop = allocate(total, total.shape, torch.float32)
        states = key_states(k, v, where, bounds, causal, sizes)
        dq_launch(q, k, v, grad_out, out, total, states, dq, drop, bounds, where, causal, sizes).run(
            linear_dq_kernel
        )
        del states
        size = state_size(q.shape[3], v.shape[3])
        later = allocate(k, (*k.shape[:2], where.query_chunks, size), torch.float32)
        query_states_launch(q, grad_out, total, drop, later, bounds, sizes).run(linear_query_states_kernel)
        scan_launch(later, bounds, keep_all=causal, reverse=True).run(linear_scan_kernel)
        for result, of_keys in ((dk, True), (dv, False)):
            keys_gradient_launch(
                q, k, v, grad_out, total, drop, later, result, bounds, causal, of_keys, sizes
            ).run(linear_keys_gradient_kernel)
    return dq, dk, dv


def key_states(
    k: Tensor, v: Tensor, where: Geometry, bounds: Tensor, causal: bool, tile: LinearTile
) -> Tensor:
    """Return ``Σ φ(k)ᵀ [v, 1]`` up to the end of each chunk of keys, ``[B, G, chunks, D·Dv + D]`` float32."""
    size = state_size(k.shape[3], v.shape[3])
    states = allocate(k, (*k.shape[:2], where.key_chunks, size), torch.float32)
    states_launch(k, v, states, bounds, tile).run(linear_states_kernel)
    scan_launch(states, bounds, keep_all=causal, reverse=False).run(linear_scan_kernel)
    return states


def on_device(tensor: Tensor) -> Any:
    """Make the tensor's GPU the current one."""
    return torch.cuda.device(tensor.device) if tensor.device.type == "cuda" else nullcontext()


def _interpreted() -> bool:
    return not isinstance(linear_output_kernel, JITFunction)


def require_backend(tensor: Tensor) -> None:
    """Refuse the CPU unless triton interprets."""
    if tensor.device.type == "cpu" and not _interpreted():
        raise UsageError(
            "on the CPU a Triton kernel needs the interpreter: set TRITON_INTERPRET=1 before importing triton"
        )


def allocate(like: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return room for results.

    The interpreter may run a sample of the programs: what none computed must not pass for a result.
    """
    if _interpreted():
        return like.new_full(shape, math.nan, dtype=dtype)
    return like.new_empty(shape, dtype=dtype)


@lru_cache(maxsize=256)
def bounds_tensor(rows: tuple[Row, ...], device: torch.device) -> Tensor:
    """Return the rows as ``[B, 4]`` int32; kept, so that calls copy nothing."""
    return torch.tensor(rows, dtype=torch.int32).to(device)


def _shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


torch.library.register_fake("attnbench::linear_forward", _shapes, lib=_LIBRARY)


def _gradient_shapes(_: Tensor, q: Tensor, k: Tensor, v: Tensor, *__: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


torch.library.register_fake("attnbench::linear_backward", _gradient_shapes, lib=_LIBRARY)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *ctx.settings = inputs
    out, total = output
    ctx.mark_non_differentiable(total)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, total)


def _differentiate(ctx: Any, grad_out: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_out is None:
        return (None,) * 7
    gradients = torch.ops.attnbench.linear_backward(grad_out, *ctx.saved_tensors, *ctx.settings)
    return (*gradients, None, None, None, None)


torch.library.register_autograd(
    "attnbench::linear_forward", _differentiate, setup_context=_keep, lib=_LIBRARY
)
