"""What a step of decoding with linear attention costs by its kernel. In: a problem. Out: exact integers."""

from collections.abc import Sequence

from attnbench.contract.cost import Cost, compulsory_bytes, tensor_bytes
from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem
from attnbench.implementations._flash.tiles import current_target, padded_width

from .cost import after_context, state_bytes, useful_flops
from .programs import FLOAT_BYTES, column_widths
from .tiles import LinearTile, kernels_take, linear_tile_for

STEP_TOKENS = 16
"""A longer chunk of new tokens is worth matmuls."""


def step_kernel_takes(problem: Problem) -> bool:
    """Whether the kernel takes a chunk of ``seqlen_q`` new tokens, which see those before and themselves.

    Queries without new tokens, which only read the state, are one product of PyTorch's.
    """
    p = problem
    in_order = isinstance(p.mask, Causal) or p.seqlen_q == 1
    few = 0 < p.seqlen_q <= STEP_TOKENS and p.seqlen_k > 0
    return p.device == "cuda" and in_order and few and kernels_take(p)


def step_tile(problem: Problem) -> LinearTile:
    """Return the tile of a step on what is here: always that of the table, since no chunk is computed."""
    return linear_tile_for(problem, "forward", current_target(problem.device))


def step_flops(shape: Sequence[int], num_kv_heads: int, value_dim: int, tile: LinearTile) -> int:
    """FLOPs on whole blocks, given the queries' shape: a key goes into the state, a query through it."""
    batch, num_heads, tokens, head_dim = shape
    widths, block = column_widths(value_dim, tile)
    heads = batch * (num_heads + num_kv_heads) * tokens
    return 2 * heads * padded_width(head_dim) * len(widths) * (block + 1)


def step_cost(problem: Problem) -> Cost:
    """Exact counts of a step: the state is read and written, whatever the context."""
    p = after_context(problem)
    tile, size = step_tile(p), tensor_bytes(p)
    widths, _ = column_widths(p.head_dim_v, tile)
    programs, blocks = p.batch * p.num_kv_heads, len(widths)
    tokens = p.batch * p.num_heads * p.seqlen_q
    added = p.num_kv_heads * sum(p.key_limits)
    state = state_bytes(p)
    requested = programs * FLOAT_BYTES + 2 * state
    requested += (tokens + added) * (blocks * p.head_dim + p.head_dim_v) * p.dtype_bytes
    return Cost(
        flops=useful_flops(p),
        executed_flops=step_flops(
            (p.batch, p.num_heads, p.seqlen_q, p.head_dim), p.num_kv_heads, p.head_dim_v, tile
        ),
        exponentials=p.batch
        * p.seqlen_q
        * (p.num_heads + p.num_kv_heads)
        * blocks
        * padded_width(p.head_dim),
        compulsory_bytes=compulsory_bytes(p) + 2 * state,
        operand_bytes=sum(size[name] for name in "qkv") + size["out"] + 2 * state,
        requested_bytes=requested,
        peak_bytes=size["out"],
        leading={
            "flops": "2*B*(H + G)*n*d*e",
            "requested_bytes": f"{2 * FLOAT_BYTES}*B*G*d*e",
            "peak_bytes": f"{p.dtype_bytes}*B*H*n*e",
        },
    )
