"""The FlashAttention forward kernel as one differentiable operator, `attnbench::flash_forward`.

In: q, k, v. Out: out, lse. On CUDA the kernel is compiled; on the CPU it runs in Triton's interpreter alone,
where ``TRITON_INTERPRET=1`` must be set before triton is imported. Fake tensors, counters and PyTorch's
compiler see one operator a kernel.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.problem import Problem
from attnbench.implementations._shared.constant import constant
from attnbench.implementations._shared.operators import LIBRARY, bounds, define, result, run

from .backward import flash_backward
from .cost import operator_flops
from .forward_kernel import flash_forward_kernel
from .launch import Form, forward_launch
from .programs import effective_band
from .tiles import Tile, tile_for

define(
    "flash_forward(Tensor q, Tensor k, Tensor v, int[] query_starts, int[] key_limits, int? left, "
    "int? right, float scale, int[] tile, int[] dq_tile, int[] dkdv_tile) "
    "-> (Tensor out, Tensor lse, Tensor statistics)"
)


def flash_forward(q: Tensor, k: Tensor, v: Tensor, *, problem: Problem) -> AttentionOutput:
    """``softmax(q kᵀ · scale + mask) v`` and its float32 ``lse``, tile by tile; the scores are never held.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``, any strides → out ``[B, H, Sq, Dv]``, lse
    ``[B, H, Sq]``, both differentiable, once. Rows that see no key give 0 and -inf; keys that no query sees
    are never read. Source: FlashAttention-2, arXiv 2307.08691.

    Raises:
        UsageError: the tensors are on the CPU and triton does not interpret.
    """
    differentiable = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    out, lse, _ = torch.ops.attnbench.flash_forward(q, k, v, *operator_numbers(problem, differentiable))
    return AttentionOutput(out, lse)


@constant
def operator_numbers(problem: Problem, differentiable: bool) -> tuple[Any, ...]:
    """Return what the operator is called with besides tensors; backward tiles if a pass follows."""
    band = effective_band(problem)
    backward = [tile_for(problem, kernel=kernel) if differentiable else () for kernel in ("dq", "dkdv")]
    starts, limits = problem.query_starts, problem.key_limits
    return starts, limits, band.left, band.right, problem.softmax_scale, tile_for(problem), *backward


@torch.library.impl(LIBRARY, "flash_forward", "CompositeExplicitAutograd")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    left: int | None,
    right: int | None,
    scale: float,
    tile: Sequence[int],
    dq_tile: Sequence[int],
    dkdv_tile: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the kernel. The tiles of the backward pass are empty where none follows: no statistics then."""
    rows = q.shape[:3]
    statistics_shape = (2, *rows) if dq_tile else (0,)
    if 0 in (q.shape[0], q.shape[2], k.shape[2]):
        return (
            q.new_zeros(*rows, v.shape[3]),
            q.new_full(rows, -math.inf, dtype=torch.float32),
            q.new_full(statistics_shape, math.inf, dtype=torch.float32),
        )
    out = result(q, (*rows, v.shape[3]), q.dtype, math.nan)
    lse = result(q, rows, torch.float32, math.nan)
    statistics = result(q, statistics_shape, torch.float32, math.inf)
    launch = forward_launch(
        q,
        k,
        v,
        out,
        lse,
        statistics if dq_tile else None,
        bounds(tuple(query_starts), tuple(key_limits), q.device),
        Form(left, right, scale, Tile(*tile)),
    )
    run(launch, flash_forward_kernel, q.device)
    return out, lse, statistics


def _shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows, dq_tile = q.shape[:3], rest[-2]
    return (
        q.new_empty(*rows, v.shape[3]),
        q.new_empty(rows, dtype=torch.float32),
        q.new_empty((2, *rows) if dq_tile else (0,), dtype=torch.float32),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, *form, _, dq_tile, dkdv_tile = inputs
    out, _, statistics = output
    if not dq_tile:
        raise RuntimeError("attnbench::flash_forward keeps what gradients need only if given their tiles")
    ctx.save_for_backward(q, k, v, out, statistics)
    ctx.form, ctx.tiles = form, (dq_tile, dkdv_tile)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, _: None) -> tuple[Any, ...]:
    q, k, v, out, statistics = ctx.saved_tensors
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    gradients = flash_backward(q, k, v, grad_out, grad_lse, out, statistics, ctx.form, *ctx.tiles)
    return *gradients, *(None,) * 8


torch.library.register_fake("attnbench::flash_forward", _shapes, lib=LIBRARY)
torch.library.register_autograd("attnbench::flash_forward", _backward, setup_context=_keep, lib=LIBRARY)


@register_flop_formula(torch.ops.attnbench.flash_forward, get_raw=True)
def _flops(q: Any, k: Any, v: Any, *form: Any, **_: Any) -> int:
    query_starts, key_limits, left, right, _scale, tile, *_tiles = form
    shapes, size = (q.shape, k.shape, v.shape), q.element_size()
    return operator_flops("forward", shapes, query_starts, key_limits, left, right, tile, size)
