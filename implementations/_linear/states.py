"""The running sums of linear attention as operators, `attnbench::linear_states` over keys and
`attnbench::linear_query_states` over queries, which its gradients need. In: tensors. Out: states.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.implementations._shared.operators import LIBRARY, define, result, run

from .backward_kernel import linear_query_states_kernel
from .forward_kernel import linear_scan_kernel, linear_states_kernel
from .geometry import Geometry, Row, geometry
from .kernel_cost import operator_flops
from .launch import query_states_launch, scan_launch, states_launch
from .programs import state_size
from .tiles import LinearTile

FORM = "int[] query_starts, int[] key_limits, bool causal, int[] tile"
"""What all operators of linear attention are given besides tensors."""
define(f"linear_states(Tensor k, Tensor v, int seqlen_q, {FORM}) -> Tensor")
define(
    "linear_query_states(Tensor q, Tensor grad_out, Tensor total, Tensor drop, int num_kv_heads, "
    f"{FORM}) -> Tensor"
)


def where(
    seqlen_q: int, query_starts: Sequence[int], key_limits: Sequence[int], causal: bool, tile: Sequence[int]
) -> Geometry:
    """Return the geometry that an operator is asked for."""
    sizes = LinearTile(*tile)
    return geometry(query_starts, key_limits, seqlen_q, causal, sizes.chunk_size, sizes.block)


@lru_cache(maxsize=256)
def bounds(rows: tuple[Row, ...], device: torch.device) -> Tensor:
    """Return the rows as ``[B, 4]`` int32; kept, so that calls copy nothing."""
    return torch.tensor(rows, dtype=torch.int32).to(device)


@torch.library.impl(LIBRARY, "linear_states", "CompositeExplicitAutograd")
def _states(
    k: Tensor,
    v: Tensor,
    seqlen_q: int,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    causal: bool,
    tile: Sequence[int],
) -> Tensor:
    """``Σ φ(k)ᵀ [v, 1]`` up to the end of each chunk of keys, ``[B, G, chunks, D·Dv + D]`` float32."""
    place = where(seqlen_q, query_starts, key_limits, causal, tile)
    shape = (*k.shape[:2], place.key_chunks, state_size(k.shape[3], v.shape[3]))
    states = result(k, shape, torch.float32, math.nan)
    if place.key_chunks:
        rows = bounds(place.rows, k.device)
        run(states_launch(k, v, states, rows, LinearTile(*tile)), linear_states_kernel, k.device)
        run(scan_launch(states, rows, causal=causal, reverse=False), linear_scan_kernel, k.device)
    return states


@torch.library.impl(LIBRARY, "linear_query_states", "CompositeExplicitAutograd")
def _query_states(
    q: Tensor,
    grad_out: Tensor,
    total: Tensor,
    drop: Tensor,
    num_kv_heads: int,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    causal: bool,
    tile: Sequence[int],
) -> Tensor:
    """``Σ (φ(q) / t)ᵀ [do, -δ]`` from the beginning of each chunk of queries to the end of the sequence,
    ``[B, G, chunks, D·Dv + D]`` float32.
    """
    place = where(q.shape[2], query_starts, key_limits, causal, tile)
    shape = (q.shape[0], num_kv_heads, place.query_chunks, state_size(q.shape[3], grad_out.shape[3]))
    states = result(q, shape, torch.float32, math.nan)
    if place.query_chunks:
        rows, sizes = bounds(place.rows, q.device), LinearTile(*tile)
        launch = query_states_launch(q, grad_out, total, drop, states, rows, sizes)
        run(launch, linear_query_states_kernel, q.device)
        run(scan_launch(states, rows, causal=causal, reverse=True), linear_scan_kernel, q.device)
    return states


def _states_shape(k: Tensor, v: Tensor, seqlen_q: int, *form: Any) -> Tensor:
    size = state_size(k.shape[3], v.shape[3])
    return k.new_empty((*k.shape[:2], where(seqlen_q, *form).key_chunks, size), dtype=torch.float32)


def _query_states_shape(
    q: Tensor, grad_out: Tensor, total: Tensor, drop: Tensor, num_kv_heads: int, *form: Any
) -> Tensor:
    size = state_size(q.shape[3], grad_out.shape[3])
    chunks = where(q.shape[2], *form).query_chunks
    return q.new_empty((q.shape[0], num_kv_heads, chunks, size), dtype=torch.float32)


torch.library.register_fake("attnbench::linear_states", _states_shape, lib=LIBRARY)
torch.library.register_fake("attnbench::linear_query_states", _query_states_shape, lib=LIBRARY)


@register_flop_formula(torch.ops.attnbench.linear_states)
def _states_flops(k: Any, v: Any, seqlen_q: int, *form: Any, **_: Any) -> int:
    return operator_flops("states", ((k[0], k[1], seqlen_q, k[3]), k, v), form)


@register_flop_formula(torch.ops.attnbench.linear_query_states)
def _query_states_flops(
    q: Any, grad_out: Any, total: Any, drop: Any, kv_heads: int, *form: Any, **_: Any
) -> int:
    keys = (q[0], kv_heads, 0, q[3])
    return operator_flops("query_states", (q, keys, (*keys[:3], grad_out[3])), form)
