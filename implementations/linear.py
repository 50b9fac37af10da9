"""Linear attention: a feature map in place of the softmax, and a running state in place of n × n scores.

``out_i = φ(q_i) Σ_j φ(k_j)ᵀ v_j / φ(q_i) Σ_j φ(k_j)ᵀ`` with φ = elu + 1 (arXiv 2006.16236). Causal
attention goes in chunks with a state between them, decoding token by token keeps nothing but the state. On
CUDA by Triton kernels, elsewhere (and for float64, or wider heads) in PyTorch operators.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.contract.cost import Cost
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.inputs import check_inputs
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import LINEAR_ELU

from ._flash.programs import is_empty
from ._linear.chunked import chunked_attention, chunked_forward
from ._linear.cost import chunks_cost
from ._linear.cost import state_bytes as sums_bytes
from ._linear.kernel_cost import kernel_cost
from ._linear.kernels import KERNELS
from ._linear.step_cost import step_cost, step_kernel_takes, step_tile
from ._linear.tiles import kernels_take, linear_tile_for


@dataclass
class LinearState:
    """What is kept of ``lengths[b]`` tokens of row b: ``sums`` ``[B, G, D, Dv + 1]``, float32 (float64 for
    float64).
    """

    sums: Tensor
    lengths: tuple[int, ...]

    @property
    def kv(self) -> Tensor:
        """``Σ φ(k)ᵀ v`` ``[B, G, D, Dv]``."""
        return self.sums[..., :-1]

    @property
    def normaliser(self) -> Tensor:
        """``Σ φ(k)`` ``[B, G, D]``."""
        return self.sums[..., -1]


def _kernels_run(problem: Problem) -> bool:
    """Whether the kernels do the work.

    The problem says it, not the tensors: a prediction for CUDA runs on fake tensors of the CPU.
    """
    if problem.mode == "decode":
        return step_kernel_takes(problem)
    return problem.device == "cuda" and kernels_take(problem)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """``φ(q_i) Σ_j φ(k_j)ᵀ v_j / φ(q_i) Σ_j φ(k_j)ᵀ`` over visible keys j; no scale, no lse.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` → out ``[B, H, Sq, Dv]``. Rows that see
    no key give 0. Source: Katharopoulos et al., arXiv 2006.16236.
    """
    check_inputs(q, k, v, problem)
    if _kernels_run(problem):
        from ._linear.forward import linear_forward  # loads triton

        return AttentionOutput(linear_forward(q, k, v, problem=problem))
    if torch.compiler.is_compiling():
        from ._linear.compiled import chunked_operator

        return AttentionOutput(chunked_operator(q, k, v, problem))
    return AttentionOutput(chunked_attention(q, k, v, problem))


def new_state(problem: Problem, max_seqlen: int) -> LinearState:
    """Return the state before any token; its size does not depend on ``max_seqlen``."""
    p = problem
    dtype = torch.promote_types(getattr(torch, p.dtype), torch.float32)
    shape = (p.batch, p.num_kv_heads, p.head_dim, p.head_dim_v + 1)
    return LinearState(torch.zeros(shape, dtype=dtype, device=p.device), lengths=(0,) * p.batch)


def state_bytes(problem: Problem, max_seqlen: int) -> int:
    """Return the bytes of that state, whatever ``max_seqlen``."""
    return sums_bytes(problem)


@torch.no_grad()
def extend(
    state: LinearState,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    params: Mapping[str, Tensor] | None = None,
) -> tuple[AttentionOutput, LinearState]:
    """Attend with a chunk of new tokens to all tokens so far and to each other, and add them to the state.

    q ``[B, H, T, D]``, k ``[B, G, T, D]``, v ``[B, G, T, Dv]`` → out ``[B, H, T, Dv]``, without gradients.
    ``problem.key_lengths`` count the new tokens of each row.
    """
    p = problem.replace(seqlen_q=q.shape[2], seqlen_k=k.shape[2], query_start=None)
    check_inputs(q, k, v, p)
    if len(state.lengths) != p.batch:
        raise UsageError(f"state: made for {len(state.lengths)} rows, the chunk has {p.batch}")
    state.lengths = tuple(old + new for old, new in zip(state.lengths, p.key_limits, strict=True))
    if step_kernel_takes(p):
        from ._linear import step  # noqa: F401  registers the operator and loads triton

        tile = step_tile(p)
        return AttentionOutput(
            torch.ops.attnbench.linear_step(q, k, v, state.sums, p.key_limits, tile)
        ), state
    return AttentionOutput(chunked_forward(q, k, v, p, state.sums)[0]), state


def read(
    state: LinearState, q: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """``φ(q_i) Σ_j φ(k_j)ᵀ v_j / φ(q_i) Σ_j φ(k_j)ᵀ`` over all tokens j of the state, which stays as it is.

    q ``[B, H, T, D]`` → out ``[B, H, T, Dv]``, O(D·Dv) for each query; rows of no tokens give 0.
    """
    p = problem
    k, v = (q.new_empty(p.batch, p.num_kv_heads, 0, width) for width in (p.head_dim, p.head_dim_v))
    return extend(state, q, k, v, problem=p)[0]


def cost(problem: Problem) -> Cost:
    """Exact counts of whichever path runs: the kernels, or chunks in PyTorch operators."""
    if not _kernels_run(problem):
        return chunks_cost(problem)
    return step_cost(problem) if problem.mode == "decode" else kernel_cost(problem)


def configuration(problem: Problem) -> dict[str, dict[str, int]]:
    """Return the tiles of the kernels that run: of a step, or of each pass."""
    p = problem
    if not _kernels_run(p) or is_empty(p):
        return {}
    if p.mode == "decode":
        return {"step": step_tile(p)._asdict()}
    directions = ("forward", "backward") if p.needs_gradients else ("forward",)
    return {direction: linear_tile_for(p, direction)._asdict() for direction in directions}


def unsupported(problem: Problem) -> list[str]:
    """Refuse a chunk size that is none."""
    chunk_size = problem.option("chunk_size")
    whole = isinstance(chunk_size, int) and not isinstance(chunk_size, bool)
    if chunk_size is None or (whole and chunk_size > 0):
        return []
    return [f"chunk_size must be a positive integer, not {chunk_size!r}"]


IMPLEMENTATION = Implementation(
    name="linear",
    summary="elu + 1 in place of the softmax: a running state, linear in the sequence",
    paper="Transformers are RNNs, arXiv 2006.16236",
    semantics=LINEAR_ELU,
    supports=frozenset(
        {
            "backward",
            "cross-lengths",
            "decode",
            "device:cpu",
            "device:cuda",
            "dtype:bfloat16",
            "dtype:float16",
            "dtype:float32",
            "dtype:float64",
            "grouped-heads",
            "key-lengths",
            "mask:causal",
            "mask:full",
            "query-start",
            "value-dim",
        }
    ),
    complexity=Complexity(time="O(n·d²)", memory="O(n·d)"),
    attention=attention,
    cost=cost,
    unsupported=unsupported,
    options={"chunk_size": None},
    new_state=new_state,
    extend=extend,
    read=read,
    state_bytes=state_bytes,
    kernels=KERNELS,
    runs_kernels=_kernels_run,
    configuration=configuration,
)
