"""Linear attention with the feature map elu + 1: a running state in place of the n×n scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.contract.cost import Cost, compulsory_bytes
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import LINEAR_ELU

from ._batch_runs import BatchRun, batch_runs
from ._linear_chunks import LinearChunks, parts_of

CHUNK_SIZE = 64


def _chunks(q: Tensor, k: Tensor, v: Tensor, problem: Problem, run: BatchRun) -> LinearChunks:
    p = problem
    grouped = q[run.rows].unflatten(1, (p.num_kv_heads, p.group_size))
    keys, values = (x[run.rows].unsqueeze(2) for x in (k, v))
    return LinearChunks(grouped, keys, values, parts_of(p, run), p.option("chunk_size", CHUNK_SIZE))


class _Linear(torch.autograd.Function):
    """Forward and backward sweeps as one differentiable operator."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
        p = problem
        wide = torch.promote_types(q.dtype, torch.float32)
        shape = (p.batch, p.num_kv_heads, p.group_size, p.seqlen_q)
        out = torch.empty(*shape, p.head_dim_v, dtype=q.dtype, device=q.device)
        total = torch.empty(*shape, 1, dtype=wide, device=q.device)
        for run in batch_runs(p):
            chunks = _chunks(q, k, v, p, run)
            chunks.attend(out[run.rows], total[run.rows], chunks.zero_state())
        ctx.save_for_backward(q, k, v, out, total)
        ctx.problem = problem
        return out.flatten(1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, total = ctx.saved_tensors
        p = ctx.problem
        dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for run in batch_runs(p):
            rows = run.rows
            grouped_do, grouped_dq = (x[rows].unflatten(1, out.shape[1:3]) for x in (grad_out, dq))
            keys = (x[rows].unsqueeze(2) for x in (dk, dv))
            _chunks(q, k, v, p, run).gradients(out[rows], total[rows], grouped_do, grouped_dq, *keys)
        return dq, dk, dv, None


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """``out_i = φ(q_i) Σ_j φ(k_j)ᵀ v_j / φ(q_i) Σ_j φ(k_j)ᵀ`` over visible keys j, with φ = elu + 1."""
    return AttentionOutput(_Linear.apply(q, k, v, problem))
