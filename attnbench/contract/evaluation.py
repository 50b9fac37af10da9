"""Semantics applied to whole tensors, row block by row block: the float64 truth and the baseline.

In: q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` in any dtype. Out: float64 truth, or a
baseline in the inputs' own dtype, on all query rows or on sampled ones, with gradients if asked. The baseline
can be rounded anew: in another order of its sums, and with what it stores in another unit.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .hidden import keys_near, visible_matrix, zero_hidden
from .implementation import AttentionOutput
from .problem import Problem
from .rounding import Rounding
from .semantics import BlockFunction, Semantics

BLOCK_BYTES = 1 << 26
"""Size of one block of float64 scores."""


class Truth(NamedTuple):
    """Results of one evaluation.

    ``out``, ``lse`` on the rows asked for, and gradients if an upstream gradient was given.
    """

    out: Tensor
    lse: Tensor | None
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None


def _evaluate(
    function: BlockFunction,
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    grad_out: Tensor | None,
    rows: Tensor | None,
    params: Mapping[str, Tensor] | None,
    rounding: Rounding,
) -> Truth:
    p = problem
    index = torch.arange(p.seqlen_q) if rows is None else rows.cpu()
    with torch.no_grad():
        k, v = zero_hidden(k, v, p)
    k, v = k.detach(), v.detach()
    gradients = grad_out is not None
    # Sums over blocks are float32's or better, as all sums are.
    wide = torch.promote_types(q.dtype, torch.float32)
    dq, dk, dv = (torch.zeros_like(x, dtype=wide) if gradients else None for x in (q, k, v))
    outs, lses = [], []
    step = max(1, BLOCK_BYTES // (8 * max(1, p.batch * p.num_heads * p.seqlen_k)))
    # Nothing sums over the elements of values but a backward pass.
    in_values = rounding if gradients else Rounding()
    dims, dims_v = rounding.order(p.head_dim), in_values.order(p.head_dim_v)
    back, back_v = torch.argsort(dims), torch.argsort(dims_v)
    for first in range(0, index.numel(), step):
        block = index[first : first + step]
        near = keys_near(p, int(block.min()), int(block.max()))
        keys = near if semantics.local_keys else slice(0, p.seqlen_k)
        here = block.to(q.device)
        q_block = rounding.taken(q.detach()[:, :, here], dims).requires_grad_(gradients)
        k_block = rounding.taken(k[:, :, keys], dims).requires_grad_(gradients)
        v_block = in_values.taken(v[:, :, keys], dims_v).requires_grad_(gradients)
        visible = visible_matrix(p, q.device, block, keys)
        with torch.set_grad_enabled(gradients):
            wide_k, wide_v = (x.repeat_interleave(p.group_size, dim=1) for x in (k_block, v_block))
            out, lse = function(q_block, wide_k, wide_v, problem=p, visible=visible, params=params)
        if grad_out is not None and dq is not None and dk is not None and dv is not None and out.numel():
            given = in_values.taken(grad_out[:, :, here].to(out.dtype), dims_v)
            grads = torch.autograd.grad(out, (q_block, k_block, v_block), given, allow_unused=True)
            for total, place, elements, part in (
                (dq, here, back, grads[0]),
                (dk, keys, back, grads[1]),
                (dv, keys, back_v, grads[2]),
            ):
                if part is not None:
                    total[:, :, place] += rounding.taken(part, elements)
        outs.append(in_values.taken(out.detach(), back_v))
        if lse is not None:
            lses.append(lse.detach().expand(p.batch, p.num_heads, block.numel()))
    shape = (p.batch, p.num_heads, 0)
    out = torch.cat(outs, dim=2) if outs else q.new_zeros(*shape, p.head_dim_v)
    lse = torch.cat(lses, dim=2) if semantics.has_lse and lses else None
    if lse is None and semantics.has_lse:
        lse = q.new_zeros(shape)
    dq, dk, dv = (None if x is None else x.to(q.dtype) for x in (dq, dk, dv))
    return Truth(out, lse, dq, dk, dv)


def truth(
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    grad_out: Tensor | None = None,
    rows: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
) -> Truth:
    """Evaluate the definition in float64 on all query rows, or on the given ones (``rows``, 1-d, shared by
    all heads).

    Gradients are those of ``sum(out · grad_out)`` over the evaluated rows alone: give an upstream gradient
    that is zero elsewhere and they are the gradients of the whole. dq, dk, dv come whole, ``[B, H, Sq, D]``
    and ``[B, G, Sk, …]``.
    """
    wide_params = None if params is None else {name: value.double() for name, value in params.items()}
    wide_grad = None if grad_out is None else grad_out.double()
    return _evaluate(
        semantics.reference,
        semantics,
        q.double(),
        k.double(),
        v.double(),
        problem,
        wide_grad,
        rows,
        wide_params,
        Rounding(),
    )


def baseline(
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    grad_out: Tensor | None = None,
    rows: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
    rounding: int = 0,
) -> Truth:
    """Evaluate the plain computation in the inputs' own dtype: what an error budget is measured by.

    Same arguments as ``truth``, and ``rounding``: 0 is the computation as written down. Each other number is
    the same computation rounded elsewhere: the elements of heads are summed in an order of its own, and what
    is stored is stored in a unit of its own (``Semantics.in_unit``), so that sums over keys round anew too.
    """
    function, anew = semantics.baseline, Rounding()
    if rounding and semantics.in_unit is not None:
        anew = Rounding(rounding)
        function = semantics.in_unit(anew.unit)
    return _evaluate(function, semantics, q, k, v, problem, grad_out, rows, params, anew)


def definition(
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    params: Mapping[str, Tensor] | None = None,
    plain: bool = False,
) -> AttentionOutput:
    """Evaluate the reference (or, if ``plain``, the baseline) on all rows at once in the inputs' dtype,
    under autograd: n² memory.
    """
    k, v = zero_hidden(k, v, problem)
    wide_k, wide_v = (x.repeat_interleave(problem.group_size, dim=1) for x in (k, v))
    function = semantics.baseline if plain else semantics.reference
    return function(
        q, wide_k, wide_v, problem=problem, visible=visible_matrix(problem, q.device), params=params
    )
