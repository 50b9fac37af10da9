"""The launches of the linear-attention kernels without memory, for whoever only compiles them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.contract.launch import Launch, meta_inputs
from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem

from .cost import PASSES, after_context
from .geometry import geometry_of
from .launch import (
    dq_launch,
    keys_gradient_launch,
    output_launch,
    query_states_launch,
    scan_launch,
    states_launch,
    step_launch,
)
from .programs import state_size
from .step_cost import step_kernel_takes
from .tiles import linear_tile_for


def launches_on_meta(name: str, problem: Problem, target: str) -> tuple[Launch, ...]:
    """Return the launches of a kernel for a problem on a target, in the order in which they run."""
    return tuple(launch for kernel, launch in _launches(problem, target) if kernel == name)


def _launches(problem: Problem, target: str) -> Iterator[tuple[str, Launch]]:
    if problem.mode == "decode":
        if step_kernel_takes(problem):
            yield _step(problem, target)
        return
    forward, backward = PASSES[problem.mode]
    if forward:
        yield from _pass(problem, "forward", target)
    if backward:
        yield from _pass(problem, "backward", target)


def _pass(problem: Problem, direction: str, target: str) -> Iterator[tuple[str, Launch]]:
    p, causal = problem, isinstance(problem.mask, Causal)
    tile = linear_tile_for(p, direction, target)
    place = geometry_of(p, tile.chunk_size, tile.block)
    q, k, v = meta_inputs(p)
    bounds = q.new_empty((p.batch, 4), dtype=torch.int32)
    total = q.new_empty(q.shape[:3], dtype=torch.float32)
    out = q.new_empty(*q.shape[:3], p.head_dim_v)

    def states(chunks: int) -> Tensor:
        shape = (p.batch, p.num_kv_heads, chunks, state_size(p.head_dim, p.head_dim_v))
        return q.new_empty(shape, dtype=torch.float32)

    keys, later = states(place.key_chunks), states(place.query_chunks)
    yield "linear_states_kernel", states_launch(k, v, keys, bounds, tile)
    yield "linear_scan_kernel", scan_launch(keys, bounds, causal=causal, reverse=False)
    if direction == "forward":
        yield "linear_output_kernel", output_launch(q, k, v, keys, out, total, bounds, place, causal, tile)
        return
    yield (
        "linear_dq_kernel",
        dq_launch(q, k, v, out, out, total, keys, q, total, bounds, place, causal, tile),
    )
    yield "linear_query_states_kernel", query_states_launch(q, out, total, total, later, bounds, tile)
    yield "linear_scan_kernel", scan_launch(later, bounds, causal=causal, reverse=True)
    for gradient, of_keys in ((k, True), (v, False)):
        yield (
            "linear_keys_gradient_kernel",
            keys_gradient_launch(q, k, v, out, total, total, later, gradient, bounds, causal, of_keys, tile),
        )


def _step(problem: Problem, target: str) -> tuple[str, Launch]:
    p = after_context(problem)
    q, k, v = meta_inputs(p)
    sums = q.new_empty((p.batch, p.num_kv_heads, p.head_dim, p.head_dim_v + 1), dtype=torch.float32)
    added = q.new_empty((p.batch,), dtype=torch.int32)
    out = q.new_empty(*q.shape[:3], p.head_dim_v)
    return "linear_step_kernel", step_launch(q, k, v, sums, out, added, linear_tile_for(p, "forward", target))
