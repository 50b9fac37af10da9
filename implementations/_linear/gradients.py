"""The gradients of linear attention by its kernels, as operators `attnbench::linear_dq` and
`attnbench::linear_dkdv`. In: what the forward pass kept, and an upstream gradient. Out: dq, dk, dv.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.implementations._shared.operators import LIBRARY, define, result, run

from .backward_kernel import linear_dq_kernel
from .kernel_cost import operator_flops
from .keys_kernel import linear_keys_gradient_kernel
from .launch import dq_launch, keys_gradient_launch
from .states import FORM, bounds, where
from .tiles import LinearTile

define(
    "linear_dq(Tensor q, Tensor k, Tensor v, Tensor out, Tensor total, Tensor grad_out, Tensor states, "
    f"{FORM}) -> (Tensor dq, Tensor drop)"
)
define(
    "linear_dkdv(Tensor q, Tensor k, Tensor v, Tensor total, Tensor grad_out, Tensor drop, Tensor states, "
    f"{FORM}) -> (Tensor dk, Tensor dv)"
)


def linear_gradients(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, grad_out: Tensor, form: Sequence[Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq ``[B, H, Sq, D]``, dk ``[B, G, Sk, D]``, dv ``[B, G, Sk, Dv]``, contiguous.

    out ``[B, H, Sq, Dv]`` and total ``[B, H, Sq]`` are what the forward pass returned; grad_out is of out's
    shape, with any strides. The states of the keys are made again: they are as large as the inputs.
    """
    operators = torch.ops.attnbench
    states = operators.linear_states(k, v, q.shape[2], *form)
    dq, drop = operators.linear_dq(q, k, v, out, total, grad_out, states, *form)
    del states
    later = operators.linear_query_states(q, grad_out, total, drop, k.shape[1], *form)
    dk, dv = operators.linear_dkdv(q, k, v, total, grad_out, drop, later, *form)
    return dq, dk, dv


@torch.library.impl(LIBRARY, "linear_dq", "CompositeExplicitAutograd")
def _dq(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    grad_out: Tensor,
    states: Tensor,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    causal: bool,
    tile: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return dq and ``-do · out / total`` ``[B, H, Sq]`` (float32)."""
    place = where(q.shape[2], query_starts, key_limits, causal, tile)
    if place.key_chunks == 0:
        return q.new_zeros(q.shape), q.new_zeros(q.shape[:3], dtype=torch.float32)
    dq = result(q, q.shape, q.dtype, math.nan)
    drop = result(q, q.shape[:3], torch.float32, math.nan)
    rows, sizes = bounds(place.rows, q.device), LinearTile(*tile)
    launch = dq_launch(q, k, v, grad_out, out, total, states, dq, drop, rows, place, causal, sizes)
    run(launch, linear_dq_kernel, q.device)
    return dq, drop


@torch.library.impl(LIBRARY, "linear_dkdv", "CompositeExplicitAutograd")
def _dkdv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Tensor,
    grad_out: Tensor,
    drop: Tensor,
    states: Tensor,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    causal: bool,
    tile: Sequence[int],
) -> tuple[Tensor, Tensor]:
    place = where(q.shape[2], query_starts, key_limits, causal, tile)
    if place.key_chunks == 0:
        return k.new_zeros(k.shape), v.new_zeros(v.shape)
    rows, sizes = bounds(place.rows, q.device), LinearTile(*tile)
    dk, dv = (result(x, x.shape, x.dtype, math.nan) for x in (k, v))
    for gradient, of_keys in ((dk, True), (dv, False)):
        launch = keys_gradient_launch(
            q, k, v, grad_out, total, drop, states, gradient, rows, causal, of_keys, sizes
        )
        run(launch, linear_keys_gradient_kernel, q.device)
    return dk, dv


def _dq_shapes(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


def _dkdv_shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return k.new_empty(k.shape), v.new_empty(v.shape)


torch.library.register_fake("attnbench::linear_dq", _dq_shapes, lib=LIBRARY)
torch.library.register_fake("attnbench::linear_dkdv", _dkdv_shapes, lib=LIBRARY)


def _refuse(ctx: Any, *_: Any) -> tuple[Any, ...]:
    raise RuntimeError("the linear-attention kernels have no second derivative")


for _name in ("linear_states", "linear_query_states", "linear_dq", "linear_dkdv"):
    torch.library.register_autograd(f"attnbench::{_name}", _refuse, lib=LIBRARY)


@register_flop_formula(torch.ops.attnbench.linear_dq, get_raw=True)
def _dq_flops(
    q: Any, k: Any, v: Any, out: Any, total: Any, grad_out: Any, states: Any, *form: Any, **_: Any
) -> int:
    return operator_flops("dq", (q.shape, k.shape, v.shape), form, q.element_size())


@register_flop_formula(torch.ops.attnbench.linear_dkdv, get_raw=True)
def _dkdv_flops(
    q: Any, k: Any, v: Any, total: Any, grad_out: Any, drop: Any, states: Any, *form: Any, **_: Any
) -> int:
    return operator_flops("dkdv", (q.shape, k.shape, v.shape), form, q.element_size())
