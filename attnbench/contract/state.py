"""Decoding state. The shared default is a preallocated key/value cache.

Implementations with a state of their own bring their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import UsageError
from .implementation import AttentionOutput, Implementation
from .problem import Problem


@dataclass
class KeyValueCache:
    """Preallocated keys and values ``[B, G, max_seqlen, D]`` of which the first ``length`` positions are
    filled.
    """

    k: Tensor
    v: Tensor
    length: int = 0


def new_state(implementation: Implementation, problem: Problem, max_seqlen: int) -> Any:
    """Return an empty decoding state for at most ``max_seqlen`` positions.

    The implementation's own, or a key/value cache.
    """
    if implementation.new_state is not None:
        return implementation.new_state(problem, max_seqlen)
    p, dtype = problem, getattr(torch, problem.dtype)
    return KeyValueCache(
        torch.empty(p.batch, p.num_kv_heads, max_seqlen, p.head_dim, dtype=dtype, device=p.device),
        torch.empty(p.batch, p.num_kv_heads, max_seqlen, p.head_dim_v, dtype=dtype, device=p.device),
    )


def state_bytes(implementation: Implementation, problem: Problem, max_seqlen: int) -> int:
    """Bytes of that state."""
    if implementation.state_bytes is not None:
        return implementation.state_bytes(problem, max_seqlen)
    p = problem
    return p.batch * p.num_kv_heads * max_seqlen * (p.head_dim + p.head_dim_v) * p.dtype_bytes


def extend(
    implementation: Implementation,
    state: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    params: Mapping[str, Tensor] | None = None,
) -> tuple[AttentionOutput, Any]:
    """Append a chunk and attend with it: q ``[B, H, T, D]``, k ``[B, G, T, D]``, v ``[B, G, T, Dv]`` → out
    ``[B, H, T, Dv]``.

    ``problem`` gives heads, widths, dtype, mask, scale and options; lengths and positions follow from the
    state.

    Raises:
        UsageError: the chunk does not fit what is left of the cache.
    """
    if implementation.extend is not None:
        result: tuple[AttentionOutput, Any] = implementation.extend(
            state, q, k, v, problem=problem, params=params
        )
        return result
    end = state.length + k.shape[2]
    if end > state.k.shape[2]:
        raise UsageError(f"the cache holds {state.k.shape[2]} positions, {end} are needed")
    state.k[:, :, state.length : end] = k
    state.v[:, :, state.length : end] = v
    state.length = end
    step = problem.replace(seqlen_q=q.shape[2], seqlen_k=end, key_lengths=None, query_start=None)
    keys, values = state.k[:, :, :end], state.v[:, :, :end]
    return implementation.attention(q, keys, values, problem=step, params=params), state
