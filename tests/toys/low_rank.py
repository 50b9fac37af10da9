"""Low-rank attention with learned projections along the sequence, in Linformer's shape (arXiv 2006.04768)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from attnbench.contract.cost import Cost, compulsory_bytes, useful_flops
from attnbench.contract.errors import UsageError
from attnbench.contract.hidden import zero_hidden
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX, Semantics

RANK = 16


def _projections(params: Mapping[str, Tensor] | None, seqlen_k: int) -> tuple[Tensor, Tensor]:
    if params is None:
        raise UsageError("low-rank needs its params: project_k and project_v, [rank, seqlen]")
    return params["project_k"][:, :seqlen_k], params["project_v"][:, :seqlen_k]


def _attend(q: Tensor, k: Tensor, v: Tensor, problem: Problem, params: Mapping[str, Tensor] | None) -> Tensor:
    """``softmax(q (E k)ᵀ · scale) F v`` with k ``[B, H, Sk, D]`` and v ``[B, H, Sk, Dv]``."""
    project_k, project_v = _projections(params, k.shape[2])
    scores = q @ (project_k @ k).transpose(-1, -2) * problem.softmax_scale
    return scores.softmax(dim=-1) @ (project_v @ v)


def _reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    visible: Tensor,
    params: Mapping[str, Tensor] | None = None,
) -> AttentionOutput:
    """The definition, in the dtype of what is given."""
    return AttentionOutput(_attend(q, k, v, problem, params))


def _baseline(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    visible: Tensor,
    params: Mapping[str, Tensor] | None = None,
) -> AttentionOutput:
    """The same with every sum in float32 or better and the result rounded."""
    wide = torch.promote_types(q.dtype, torch.float32)
    wide_params = {name: value.to(wide) for name, value in (params or {}).items()}
    return AttentionOutput(_attend(q.to(wide), k.to(wide), v.to(wide), problem, wide_params).to(q.dtype))


def init_params(problem: Problem, generator: torch.Generator) -> dict[str, Tensor]:
    """Projections ``[rank, seqlen_k]`` from ``N(0, 1 / seqlen_k)``, shared by all heads."""
    shape = (problem.option("rank", RANK), problem.seqlen_k)
    std = problem.seqlen_k**-0.5
    return {
        name: torch.empty(shape).normal_(0.0, std, generator=generator) for name in ("project_k", "project_v")
    }


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """Project the sequence first, then repeat the few projected keys for the query heads of each group."""
    k, v = zero_hidden(k, v, problem)
    project_k, project_v = _projections(params, problem.seqlen_k)
    keys, values = (
        (projection @ x).repeat_interleave(problem.group_size, dim=1)
        for projection, x in ((project_k, k), (project_v, v))
    )
    scores = q * problem.softmax_scale @ keys.transpose(-1, -2)
    return AttentionOutput(scores.softmax(dim=-1) @ values)


def cost(problem: Problem) -> Cost:
    """Two projections and two thin products: linear in the sequence."""
    p, rank = problem, problem.option("rank", RANK)
    width = p.head_dim + p.head_dim_v
    products = 2 * p.batch * rank * width * (p.num_kv_heads * p.seqlen_k + p.num_heads * p.seqlen_q)
    return Cost(
        flops=useful_flops(p),
        executed_flops=products * {"fwd": 1, "decode": 1, "bwd": 2, "fwd_bwd": 3}[p.mode],
        compulsory_bytes=compulsory_bytes(p),
        leading={"executed_flops": "2*B*H*n*W*(d+e)"},
    )


IMPLEMENTATION = Implementation(
    name="low-rank",
    summary="Keys and values projected along the sequence to a fixed number of rows",
    paper="Linformer, arXiv 2006.04768",
    semantics=Semantics(
        "low-rank", _reference, _baseline, approximates=SOFTMAX, has_lse=False, local_keys=False
    ),
    supports=frozenset(
        {
            "backward",
            "cross-lengths",
            "device:cpu",
            "device:cuda",
            "dtype:float16",
            "dtype:float32",
            "dtype:float64",
            "grouped-heads",
            "key-lengths",
            "mask:full",
            "scale",
            "value-dim",
        }
    ),
    complexity=Complexity(time="O(n·r·d)", memory="O(n·r)"),
    attention=attention,
    cost=cost,
    options={"rank": RANK},
    init_params=init_params,
)
