"""Linear attention by its kernels, as a differentiable operator, `attnbench::linear_output`.

In: q, k, v. Out: out. On CUDA the kernels are compiled; on the CPU they run in Triton's interpreter alone,
where ``TRITON_INTERPRET=1`` must be set before triton is imported.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem
from attnbench.implementations._shared.constant import constant
from attnbench.implementations._shared.once import refuse_forward_mode
from attnbench.implementations._shared.operators import LIBRARY, define, result, run

from .forward_kernel import linear_output_kernel
from .gradients import linear_gradients
from .kernel_cost import operator_flops
from .launch import output_launch
from .states import FORM, bounds, where
from .tiles import LinearTile, linear_tile_for

define(
    f"linear_output(Tensor q, Tensor k, Tensor v, Tensor states, {FORM}, int[] backward_tile) "
    "-> (Tensor out, Tensor total)"
)


def linear_forward(q: Tensor, k: Tensor, v: Tensor, *, problem: Problem) -> Tensor:
    """``φ(q_i) Σ_j φ(k_j)ᵀ v_j / φ(q_i) Σ_j φ(k_j)ᵀ`` over visible keys j, parallel over chunks.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``, any strides → out ``[B, H, Sq, Dv]``. Rows
    that see no key give 0; keys that no query sees are never read. Differentiable once, deterministic.
    Sources: arXiv 2006.16236; in chunks, arXiv 2312.06635.

    Raises:
        UsageError: the tensors are on the CPU and triton does not interpret.
    """
    refuse_forward_mode("the kernels of linear", q, k, v)
    differentiable = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    operators, (*form, backward_tile) = torch.ops.attnbench, _numbers(problem, differentiable)
    with torch.no_grad():  # the gradients of the output are those of everything that it is made of
        states = operators.linear_states(k, v, q.shape[2], *form)
    out: Tensor = operators.linear_output(q, k, v, states, *form, backward_tile)[0]
    return out


@constant
def _numbers(problem: Problem, differentiable: bool) -> tuple[Any, ...]:
    """Return what the operators are called with besides tensors, and the tile of a backward pass if one
    follows.
    """
    p = problem
    backward_tile = linear_tile_for(p, "backward") if differentiable else ()
    form = (p.query_starts, p.key_limits, isinstance(p.mask, Causal), linear_tile_for(p, "forward"))
    return (*form, backward_tile)


@torch.library.impl(LIBRARY, "linear_output", "CompositeExplicitAutograd")
def _output(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    states: Tensor,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    causal: bool,
    tile: Sequence[int],
    backward_tile: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return out ``[B, H, Sq, Dv]`` and denominators ``[B, H, Sq]`` (float32; 1 where they are 0)."""
    rows, place = q.shape[:3], where(q.shape[2], query_starts, key_limits, causal, tile)
    if place.key_chunks == 0:
        return q.new_zeros(*rows, v.shape[3]), q.new_ones(rows, dtype=torch.float32)
    out = result(q, (*rows, v.shape[3]), q.dtype, math.nan)
    total = result(q, rows, torch.float32, math.nan)
    launch = output_launch(
        q, k, v, states, out, total, bounds(place.rows, q.device), place, causal, LinearTile(*tile)
    )
    run(launch, linear_output_kernel, q.device)
    return out, total


def _shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, _, *form, _, backward_tile = inputs
    out, total = output
    ctx.mark_non_differentiable(total)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, total)
    ctx.form = (*form, backward_tile)


def _backward(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 6
    if grad_out is None:
        return (None, None, None, *nothing)
    q, k, v, out, total = ctx.saved_tensors
    return (*linear_gradients(q, k, v, out, total, grad_out, ctx.form), *nothing)


torch.library.register_fake("attnbench::linear_output", _shapes, lib=LIBRARY)
torch.library.register_autograd("attnbench::linear_output", _backward, setup_context=_keep, lib=LIBRARY)


@register_flop_formula(torch.ops.attnbench.linear_output, get_raw=True)
def _flops(q: Any, k: Any, v: Any, states: Any, *form: Any, **_: Any) -> int:
    return operator_flops("output", (q.shape, k.shape, v.shape), form[:4], q.element_size())
