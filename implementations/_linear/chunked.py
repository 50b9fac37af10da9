"""Linear attention in PyTorch operators over all batch runs. In: q, k, v. Out: out and gradients."""

from typing import Any

import torch
from torch import Tensor

from attnbench.contract.problem import Problem
from attnbench.implementations._shared.batch_runs import BatchRun, batch_runs
from attnbench.implementations._shared.once import once

from .chunks import LinearChunks
from .parts import parts_of


def _chunks(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, run: BatchRun, state: Tensor | None = None
) -> LinearChunks:
    p = problem
    grouped = q[run.rows].unflatten(1, (p.num_kv_heads, p.group_size))
    keys, values = (x[run.rows].unsqueeze(2) for x in (k, v))
    return LinearChunks(grouped, keys, values, parts_of(p, run), state)


def chunked_forward(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, sums: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return out ``[B, H, Sq, Dv]`` and denominators ``[B, H, Sq]``, 1 for rows that see no key.

    ``sums`` ``[B, G, D, Dv + 1]`` of earlier tokens, if given, count too, and take up the new keys in place.
    """
    p, wide = problem, torch.promote_types(q.dtype, torch.float32)
    grouped = (p.batch, p.num_kv_heads, p.group_size, p.seqlen_q)
    out = torch.empty(*grouped, p.head_dim_v, dtype=q.dtype, device=q.device)
    total = torch.empty(*grouped, 1, dtype=wide, device=q.device)
    for run in batch_runs(p):
        state = None if sums is None else sums[run.rows].flatten(0, 1)
        _chunks(q, k, v, p, run, state).attend(out[run.rows], total[run.rows])
    return out.flatten(1, 2), total.flatten(1, 2).squeeze(-1)


def chunked_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, grad_out: Tensor, problem: Problem
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk and dv, given what the forward pass returned."""
    p = problem
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    for run in batch_runs(p):
        of_queries = (
            x[run.rows].unflatten(1, (p.num_kv_heads, p.group_size))
            for x in (out, total.unsqueeze(-1), grad_out, dq)
        )
        of_keys = (x[run.rows].unsqueeze(2) for x in (dk, dv))
        _chunks(q, k, v, p, run).gradients(*of_queries, *of_keys)
    return dq, dk, dv


class _LinearAttention(torch.autograd.Function):
    """Both passes as one differentiable operator."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
        out, total = chunked_forward(q, k, v, problem)
        ctx.save_for_backward(q, k, v, out, total)
        ctx.problem = problem
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, total = ctx.saved_tensors
        with torch.no_grad():
            gradients = chunked_backward(q, k, v, out, total, grad_out, ctx.problem)
        return *once("linear", gradients, (q, k, v, grad_out)), None


def chunked_attention(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
    """``φ(q_i) Σ_j φ(k_j)ᵀ v_j / φ(q_i) Σ_j φ(k_j)ᵀ`` over visible keys j, differentiable once.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``, any strides → out ``[B, H, Sq, Dv]``. Rows
    that see no key give 0.
    """
    out: Tensor = _LinearAttention.apply(q, k, v, problem)  # type: ignore[no-untyped-call]  # PyTorch's
    return out
