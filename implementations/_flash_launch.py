"""What the FlashAttention forward kernel is launched with. In: tensors and a tile. Out: a `Launch`."""

import math
from typing import Any

from torch import Tensor

from attnbench.contract.launch import Launch, meta_inputs
from attnbench.contract.problem import Problem

from ._flash_cost import effective_band
from ._flash_tiles import Tile, padded_width, tile_for

LOG2_E = math.log2(math.e)


def forward_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bounds: Tensor,
    left: int | None,
    right: int | None,
    scale: float,
    tile: Tile,
) -> Launch:
    """Return the launch: one program a (batch row, query head, query tile).

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``, any strides; out ``[B, H, Sq, Dv]`` and
    lse ``[B, H, Sq]`` contiguous; bounds ``[B, 2]`` int32.
    """
    batch, num_heads, seqlen_q, head_dim = q.shape
    value_dim = v.shape[3]
    arguments: dict[str, Any] = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "out_ptr": out,
        "lse_ptr": lse,
        "bounds_ptr": bounds,
        **_strides("q", q),
        **_strides("k", k),
        **_strides("v", v),
        "num_heads": num_heads,
        "group_size": num_heads // k.shape[1],
        "seqlen_q": seqlen_q,
        "left": left or 0,
        "right": right or 0,
        "scale_log2": abs(scale or 1.0) * LOG2_E,
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_D": padded_width(head_dim),
        "BLOCK_DV": padded_width(value_dim),
        "BLOCK_Q": tile.block_q,
        "BLOCK_K": tile.block_k,
        "HAS_LEFT": left is not None,
        "HAS_RIGHT": right is not None,
        "QUERY_SIGN": (scale > 0) - (scale < 0),
    }
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages, "enable_fp_fusion": True}
    return Launch((-(-seqlen_q // tile.block_q) * batch * num_heads,), arguments, options)


def _strides(name: str, tensor: Tensor) -> dict[str, int]:
    return {
        f"stride_{name}{axis}": stride
        for axis, stride in zip(("b", "h", "s", "d"), tensor.stride(), strict=True)
    }


def forward_variants(problem: Problem, target: str) -> tuple[Launch, ...]:
    """Return the one launch for a problem on a target, on tensors of the meta device."""
    import torch

    q, k, v = meta_inputs(problem)
    band = effective_band(problem)
    out = q.new_empty(*q.shape[:3], problem.head_dim_v)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    bounds = q.new_empty((problem.batch, 2), dtype=torch.int32)
    tile = tile_for(problem, target)
    scale = problem.softmax_scale
    return (forward_launch(q, k, v, out, lse, bounds, band.left, band.right, scale, tile),)
