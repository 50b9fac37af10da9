"""The FlashAttention backward kernels as operators, `attnbench::flash_dq` and `attnbench::flash_dkdv`.

In: q, k, v, upstream gradients, and what the forward pass kept. Out: dq, dk, dv.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.implementations._shared.operators import LIBRARY, bounds, define, result, run

from .cost import operator_flops
from .dkdv_kernel import flash_dkdv_kernel
from .dq_kernel import flash_dq_kernel
from .launch import Form, dkdv_launch, dq_launch
from .tiles import Tile

_FORM = "int[] query_starts, int[] key_limits, int? left, int? right, float scale, int[] tile"
define(
    "flash_dq(Tensor q, Tensor k, Tensor v, Tensor grad_out, Tensor? grad_lse, Tensor out, "
    f"Tensor statistics, {_FORM}) -> (Tensor dq, Tensor delta)"
)
define(
    "flash_dkdv(Tensor q, Tensor k, Tensor v, Tensor grad_out, Tensor statistics, Tensor delta, "
    f"{_FORM}) -> (Tensor dk, Tensor dv)"
)


def flash_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    out: Tensor,
    statistics: Tensor,
    form: Sequence[Any],
    dq_tile: Sequence[int],
    dkdv_tile: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk and dv, contiguous and in the inputs' shapes.

    Args:
        q: queries ``[B, H, Sq, D]``.
        k: keys ``[B, G, Sk, D]``.
        v: values ``[B, G, Sk, Dv]``.
        grad_out: upstream gradient ``[B, H, Sq, Dv]``, any strides.
        grad_lse: that of lse ``[B, H, Sq]``, or None for zero.
        out: what the forward pass returned.
        statistics: ``[2, B, H, Sq]``, likewise.
        form: query starts, key limits, left, right and scale, as the forward operator takes them.
        dq_tile: tile of the kernel for dq.
        dkdv_tile: tile of the kernel for dk and dv.
    """
    operators = torch.ops.attnbench
    dq, delta = operators.flash_dq(q, k, v, grad_out, grad_lse, out, statistics, *form, dq_tile)
    dk, dv = operators.flash_dkdv(q, k, v, grad_out, statistics, delta, *form, dkdv_tile)
    return dq, dk, dv


def _is_empty(q: Tensor, k: Tensor) -> bool:
    return 0 in (q.shape[0], q.shape[2], k.shape[2])


@torch.library.impl(LIBRARY, "flash_dq", "CompositeExplicitAutograd")
def _dq(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    out: Tensor,
    statistics: Tensor,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    left: int | None,
    right: int | None,
    scale: float,
    tile: Sequence[int],
) -> tuple[Tensor, Tensor]:
    if _is_empty(q, k):
        return q.new_zeros(q.shape), q.new_zeros(q.shape[:3], dtype=torch.float32)
    dq = result(q, q.shape, q.dtype, math.nan)
    # Rows that no program of a sample computes have no weights: with a delta of 0 they add nothing.
    delta = result(q, q.shape[:3], torch.float32, 0.0)
    launch = dq_launch(
        q,
        k,
        v,
        grad_out,
        None if grad_lse is None else grad_lse.contiguous(),
        out,
        statistics,
        bounds(tuple(query_starts), tuple(key_limits), q.device),
        dq,
        delta,
        Form(left, right, scale, Tile(*tile)),
    )
    run(launch, flash_dq_kernel, q.device)
    return dq, delta


@torch.library.impl(LIBRARY, "flash_dkdv", "CompositeExplicitAutograd")
def _dkdv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    statistics: Tensor,
    delta: Tensor,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    left: int | None,
    right: int | None,
    scale: float,
    tile: Sequence[int],
) -> tuple[Tensor, Tensor]:
    if _is_empty(q, k):
        return k.new_zeros(k.shape), v.new_zeros(v.shape)
    dk, dv = (result(x, x.shape, x.dtype, math.nan) for x in (k, v))
    launch = dkdv_launch(
        q,
        k,
        v,
        grad_out,
        statistics,
        delta,
        bounds(tuple(query_starts), tuple(key_limits), q.device),
        dk,
        dv,
        Form(left, right, scale, Tile(*tile)),
    )
    run(launch, flash_dkdv_kernel, q.device)
    return dk, dv


def _dq_shapes(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


def _dkdv_shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return k.new_empty(k.shape), v.new_empty(v.shape)


def _refuse(ctx: Any, *_: Any) -> tuple[Any, ...]:
    raise RuntimeError("the FlashAttention kernels have no second derivative")


for _name, _fake in (("attnbench::flash_dq", _dq_shapes), ("attnbench::flash_dkdv", _dkdv_shapes)):
    torch.library.register_fake(_name, _fake, lib=LIBRARY)
    torch.library.register_autograd(_name, _refuse, lib=LIBRARY)


def _flops(kernel: str, q: Tensor, k: Tensor, v: Tensor, form: Sequence[Any]) -> int:
    query_starts, key_limits, left, right, _scale, tile = form
    shapes, size = (q.shape, k.shape, v.shape), q.element_size()
    return operator_flops(kernel, shapes, query_starts, key_limits, left, right, tile, size)


@register_flop_formula(torch.ops.attnbench.flash_dq, get_raw=True)
def _dq_flops(q: Any, k: Any, v: Any, *rest: Any, **_: Any) -> int:
    return _flops("dq", q, k, v, rest[-6:])


@register_flop_formula(torch.ops.attnbench.flash_dkdv, get_raw=True)
def _dkdv_flops(q: Any, k: Any, v: Any, *rest: Any, **_: Any) -> int:
    return _flops("dkdv", q, k, v, rest[-6:])
