"""What the linear-attention kernels are launched with. In: tensors, a geometry, a tile. Out: `Launch`."""

from typing import Any

from torch import Tensor

from attnbench.contract.launch import Launch
from attnbench.implementations._flash.tiles import padded_width

from .geometry import Geometry
from .programs import SCAN_COLUMNS
from .tiles import LinearTile, column_block

SCAN_ROWS, SCAN_WARPS = 16, 4
"""Chunks a step of the scan, and its warps."""


def strides(**tensors: Tensor) -> dict[str, int]:
    """Name the strides of ``[B, H, S, D]`` tensors: ``stride_qb`` and so on."""
    return {
        f"stride_{name}{axis}": stride
        for name, tensor in tensors.items()
        for axis, stride in zip("bhsd", tensor.stride(), strict=True)
    }


def tile_arguments(dtype: str, head_dim: int, value_dim: int, tile: LinearTile) -> dict[str, Any]:
    """Return the widths and blocks that all kernels share."""
    return {
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "BLOCK": tile.block,
        "CHUNK": tile.chunk_size,
        "WIDE": dtype != "bfloat16",
        "PRECISION": "ieee" if dtype == "float32" else "tf32",
    }


def options(tile: LinearTile) -> dict[str, Any]:
    """Return how the kernels are compiled."""
    return {"num_warps": tile.num_warps, "num_stages": tile.num_stages, "enable_fp_fusion": True}


def dtype_name(tensor: Tensor) -> str:
    """``float16`` for ``torch.float16``."""
    return str(tensor.dtype).removeprefix("torch.")


def states_launch(k: Tensor, v: Tensor, states: Tensor, bounds: Tensor, tile: LinearTile) -> Launch:
    """Sum within each chunk of keys. k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``, any strides."""
    batch, num_kv_heads, num_chunks = states.shape[:3]
    head_dim, value_dim = k.shape[3], v.shape[3]
    block_v, num_blocks = column_block(value_dim, tile)
    arguments = {
        "k_ptr": k,
        "v_ptr": v,
        "states_ptr": states,
        "bounds_ptr": bounds,
        **strides(k=k, v=v),
        "num_kv_heads": num_kv_heads,
        "num_chunks": num_chunks,
        "BLOCK_D": padded_width(head_dim),
        "BLOCK_V": block_v,
        **tile_arguments(dtype_name(k), head_dim, value_dim, tile),
    }
    return Launch((batch * num_kv_heads * num_chunks * num_blocks,), arguments, options(tile))


def scan_launch(states: Tensor, bounds: Tensor, *, causal: bool, reverse: bool) -> Launch:
    """Turn sums within chunks into running sums. states ``[B, G, chunks, D·Dv + D]``."""
    batch, num_kv_heads, num_chunks, size = states.shape
    arguments = {
        "states_ptr": states,
        "bounds_ptr": bounds,
        "num_kv_heads": num_kv_heads,
        "num_chunks": num_chunks,
        "STATE_SIZE": size,
        "BLOCK": SCAN_COLUMNS,
        "ROWS": SCAN_ROWS,
        "KEEP_ALL": causal,
        "REVERSE": reverse,
    }
    grid = (batch * num_kv_heads * -(-size // SCAN_COLUMNS),)
    return Launch(grid, arguments, {"num_warps": SCAN_WARPS, "num_stages": 1, "enable_fp_fusion": True})


def _query_tiles(q: Tensor, k: Tensor, where: Geometry, causal: bool) -> dict[str, Any]:
    """Return what the kernels have in common whose programs are tiles of queries."""
    num_heads = q.shape[1]
    return {
        "num_heads": num_heads,
        "group_size": num_heads // k.shape[1],
        "seqlen_q": q.shape[2],
        "num_tiles": where.query_tiles,
        "num_chunks": where.key_chunks,
        "CAUSAL": causal,
    }


def output_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    states: Tensor,
    out: Tensor,
    total: Tensor,
    bounds: Tensor,
    where: Geometry,
    causal: bool,
    tile: LinearTile,
) -> Launch:
    """Compute out ``[B, H, Sq, Dv]`` and denominators ``[B, H, Sq]``, both contiguous."""
    batch, num_heads, _, head_dim = q.shape
    value_dim = v.shape[3]
    block_v, num_blocks = column_block(value_dim, tile)
    arguments = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "states_ptr": states,
        "out_ptr": out,
        "total_ptr": total,
        "bounds_ptr": bounds,
        **strides(q=q, k=k, v=v),
        **_query_tiles(q, k, where, causal),
        "BLOCK_D": padded_width(head_dim),
        "BLOCK_V": block_v,
        **tile_arguments(dtype_name(q), head_dim, value_dim, tile),
    }
    return Launch((batch * num_heads * where.query_tiles * num_blocks,), arguments, options(tile))


def dq_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    out: Tensor,
    total: Tensor,
    states: Tensor,
    dq: Tensor,
    drop: Tensor,
    bounds: Tensor,
    where: Geometry,
    causal: bool,
    tile: LinearTile,
) -> Launch:
    """Compute dq ``[B, H, Sq, D]`` and ``drop`` ``[B, H, Sq]``, contiguous as out and total are."""
    batch, num_heads, _, head_dim = q.shape
    value_dim = v.shape[3]
    block_d, num_blocks = column_block(head_dim, tile)
    arguments = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "grad_ptr": grad_out,
        "out_ptr": out,
        "total_ptr": total,
        "states_ptr": states,
        "dq_ptr": dq,
        "drop_ptr": drop,
        "bounds_ptr": bounds,
        **strides(q=q, k=k, v=v, g=grad_out),
        **_query_tiles(q, k, where, causal),
        "BLOCK_D": block_d,
        "BLOCK_V": padded_width(value_dim),
        **tile_arguments(dtype_name(q), head_dim, value_dim, tile),
    }
    return Launch((batch * num_heads * where.query_tiles * num_blocks,), arguments, options(tile))


def query_states_launch(
    q: Tensor,
    grad_out: Tensor,
    total: Tensor,
    drop: Tensor,
    states: Tensor,
    bounds: Tensor,
    tile: LinearTile,
) -> Launch:
    """Sum within each chunk of queries and over the heads of a group. states ``[B, G, chunks, D·Dv + D]``."""
    batch, num_kv_heads, num_chunks = states.shape[:3]
    num_heads, seqlen_q, head_dim = q.shape[1:]
    value_dim = grad_out.shape[3]
    block_v, num_blocks = column_block(value_dim, tile)
    arguments = {
        "q_ptr": q,
        "grad_ptr": grad_out,
        "total_ptr": total,
        "drop_ptr": drop,
        "states_ptr": states,
        "bounds_ptr": bounds,
        **strides(q=q, g=grad_out),
        "num_kv_heads": num_kv_heads,
        "group_size": num_heads // num_kv_heads,
        "seqlen_q": seqlen_q,
        "num_chunks": num_chunks,
        "BLOCK_D": padded_width(head_dim),
        "BLOCK_V": block_v,
        **tile_arguments(dtype_name(q), head_dim, value_dim, tile),
    }
    return Launch((batch * num_kv_heads * num_chunks * num_blocks,), arguments, options(tile))


def keys_gradient_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    total: Tensor,
    drop: Tensor,
    states: Tensor,
    result: Tensor,
    bounds: Tensor,
    causal: bool,
    of_keys: bool,
    tile: LinearTile,
) -> Launch:
    """Compute dk ``[B, G, Sk, D]`` if ``of_keys``, else dv ``[B, G, Sk, Dv]``, contiguous."""
    batch, num_kv_heads, seqlen_k, head_dim = k.shape
    value_dim = v.shape[3]
    block, num_blocks = column_block(head_dim if of_keys else value_dim, tile)
    num_tiles = -(-seqlen_k // tile.block)
    arguments = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "grad_ptr": grad_out,
        "total_ptr": total,
        "drop_ptr": drop,
        "states_ptr": states,
        "result_ptr": result,
        "bounds_ptr": bounds,
        **strides(q=q, k=k, v=v, g=grad_out),
        "num_kv_heads": num_kv_heads,
        "group_size": q.shape[1] // num_kv_heads,
        "seqlen_q": q.shape[2],
        "seqlen_k": seqlen_k,
        "num_tiles": num_tiles,
        "num_chunks": states.shape[2],
        "BLOCK_D": block if of_keys else padded_width(head_dim),
        "BLOCK_V": padded_width(value_dim) if of_keys else block,
        "CAUSAL": causal,
        "OF_KEYS": of_keys,
        **tile_arguments(dtype_name(q), head_dim, value_dim, tile),
    }
    return Launch((batch * num_kv_heads * num_tiles * num_blocks,), arguments, options(tile))


def step_launch(
    q: Tensor, k: Tensor, v: Tensor, sums: Tensor, out: Tensor, added: Tensor, tile: LinearTile
) -> Launch:
    """Attend with T new tokens and add them to sums ``[B, G, D, Dv + 1]``, contiguous as out is.

    q ``[B, H, T, D]``, k ``[B, G, T, D]``, v ``[B, G, T, Dv]``, added ``[B]`` int32.
    """
    batch, num_kv_heads, num_tokens, head_dim = k.shape
    value_dim = v.shape[3]
    arguments = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "sums_ptr": sums,
        "out_ptr": out,
        "added_ptr": added,
        **strides(q=q, k=k, v=v),
        "num_kv_heads": num_kv_heads,
        "group_size": q.shape[1] // num_kv_heads,
        "num_tokens": num_tokens,
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_D": padded_width(head_dim),
        "BLOCK_V": column_block(value_dim, tile)[0],
    }
    return Launch((batch * num_kv_heads,), arguments, options(tile))
