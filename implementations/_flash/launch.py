"""What the FlashAttention kernels are launched with. In: tensors, a band and a tile. Out: a `Launch`.

Tensors: q and its gradients ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``, out and do
``[B, H, Sq, Dv]``, lse, dlse and delta ``[B, H, Sq]``, statistics ``[2, B, H, Sq]``, bounds ``[B, 2]``
(int32). q, k, v and do have any strides, the others are contiguous.
"""

import math
from typing import Any, NamedTuple

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from attnbench.contract.launch import Launch, meta_inputs
from attnbench.contract.problem import Problem

from .programs import effective_band
from .tiles import Tile, padded_width, tile_for

LOG2_E = math.log2(math.e)


class Form(NamedTuple):
    """What the passes share: keys at ``-left … right`` from a query are seen (None: no bound), the factor on
    the logits, and the tile.
    """

    left: int | None
    right: int | None
    scale: float
    tile: Tile


def forward_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    statistics: Tensor | None,
    bounds: Tensor,
    form: Form,
) -> Launch:
    """Return the launch: one program a (batch row, query head, query tile)."""
    arguments = {
        **input_arguments(q, k, v, form),
        **_in_the_loop(form.tile, form.tile.block_k, k_ptr=k, v_ptr=v),
        "out_ptr": out,
        "lse_ptr": lse,
        "statistics_ptr": statistics,
        "bounds_ptr": bounds,
    }
    return _launch(_query_tiles(q, form), arguments, form)


def dq_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    statistics: Tensor,
    bounds: Tensor,
    dq: Tensor,
    delta: Tensor,
    form: Form,
) -> Launch:
    """Return the launch for dq and delta: one program a (batch row, query head, query tile)."""
    arguments = {
        **input_arguments(q, k, v, form),
        **_upstream(do, form),
        **_in_the_loop(form.tile, form.tile.block_k, k_ptr=k, v_ptr=v),
        "out_ptr": out,
        "dlse_ptr": dlse,
        "statistics_ptr": statistics,
        "bounds_ptr": bounds,
        "dq_ptr": dq,
        "delta_ptr": delta,
    }
    return _launch(_query_tiles(q, form), arguments, form)


def dkdv_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    statistics: Tensor,
    delta: Tensor,
    bounds: Tensor,
    dk: Tensor,
    dv: Tensor,
    form: Form,
) -> Launch:
    """Return the launch for dk and dv: one program a (batch row, key/value head, key tile)."""
    batch, num_kv_heads, seqlen_k, _ = k.shape
    arguments = {
        **input_arguments(q, k, v, form),
        **_upstream(do, form),
        **_in_the_loop(form.tile, form.tile.block_q, q_ptr=q, do_ptr=do),
        "statistics_ptr": statistics,
        "delta_ptr": delta,
        "bounds_ptr": bounds,
        "dk_ptr": dk,
        "dv_ptr": dv,
        "num_kv_heads": num_kv_heads,
        "seqlen_k": seqlen_k,
    }
    del arguments["num_heads"]
    return _launch(-(-seqlen_k // form.tile.block_k) * batch * num_kv_heads, arguments, form)


def _launch(programs: int, arguments: dict[str, Any], form: Form) -> Launch:
    return Launch((programs,), arguments, tile_options(form.tile))


def tile_options(tile: Tile) -> dict[str, Any]:
    """Return how a kernel of that tile is compiled."""
    return {"num_warps": tile.num_warps, "num_stages": tile.num_stages, "enable_fp_fusion": True}


def sign_of(scale: float) -> int:
    """Return the sign of a scale, 0 for one that float32 rounds to 0: times -inf that would be NaN."""
    return 0 if abs(scale) * LOG2_E <= 2.0**-150 else (1 if scale > 0 else -1)


def log2_scale(scale: float) -> float:
    """Return what turns scores into exponents of 2: the factor on the logits without its sign, or 1 for 0."""
    return abs(scale) * LOG2_E if sign_of(scale) else LOG2_E


def _query_tiles(q: Tensor, form: Form) -> int:
    batch, num_heads, seqlen_q, _ = q.shape
    return -(-seqlen_q // form.tile.block_q) * batch * num_heads


def input_arguments(q: Tensor, k: Tensor, v: Tensor, form: Form) -> dict[str, Any]:
    """Return the arguments that all kernels have."""
    num_heads, head_dim, value_dim, scale = q.shape[1], q.shape[3], v.shape[3], form.scale
    return {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        **_strides("q", q),
        **_strides("k", k),
        **_strides("v", v),
        "num_heads": num_heads,
        "group_size": num_heads // k.shape[1],
        "seqlen_q": q.shape[2],
        "left": form.left or 0,
        "right": form.right or 0,
        "scale_log2": log2_scale(scale),
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_D": padded_width(head_dim),
        "BLOCK_DV": padded_width(value_dim),
        "BLOCK_Q": form.tile.block_q,
        "BLOCK_K": form.tile.block_k,
        "HAS_LEFT": form.left is not None,
        "HAS_RIGHT": form.right is not None,
        "QUERY_SIGN": sign_of(scale),
    }


def _upstream(do: Tensor, form: Form) -> dict[str, Any]:
    """Return the arguments that the backward kernels have besides."""
    return {"do_ptr": do, **_strides("do", do), "scale": form.scale}


def _in_the_loop(tile: Tile, block: int, **tensors: Tensor) -> dict[str, Any]:
    """Return what a kernel's loop reads: the tensors, or descriptors of their tiles ``[block, width]``.

    A descriptor wants rows without gaps, and strides and addresses in multiples of 16 bytes.
    """
    if not tile.tma or not all(_is_describable(x) for x in tensors.values()):
        return {**tensors, "TMA": False}
    described = {
        name: TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, block, padded_width(x.shape[3])])
        for name, x in tensors.items()
    }
    return {**described, "TMA": True}


def _is_describable(x: Tensor) -> bool:
    *strides, last = x.stride()
    aligned = all(stride > 0 and stride * x.element_size() % 16 == 0 for stride in strides)
    return last == 1 and aligned and x.data_ptr() % 16 == 0 and x.numel() > 0


def _strides(name: str, tensor: Tensor) -> dict[str, int]:
    return {
        f"stride_{name}{axis}": stride
        for axis, stride in zip(("b", "h", "s", "d"), tensor.stride(), strict=True)
    }


def launches_on_meta(kernel: str, problem: Problem, target: str) -> tuple[Launch, ...]:
    """Return the one launch of a kernel (``forward``, ``dq``, ``dkdv``) for a problem on a target.

    Tensors are contiguous and on the meta device; lse has no gradient.
    """
    import torch

    q, k, v = meta_inputs(problem)
    out = q.new_empty(*q.shape[:3], problem.head_dim_v)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    kept = lse.new_empty((2, *lse.shape))
    bounds = q.new_empty((problem.batch, 2), dtype=torch.int32)
    band = effective_band(problem)
    form = Form(band.left, band.right, problem.softmax_scale, tile_for(problem, target, kernel))
    if kernel == "forward":
        statistics = kept if problem.needs_gradients else None
        return (forward_launch(q, k, v, out, lse, statistics, bounds, form),)
    if kernel == "dq":
        return (dq_launch(q, k, v, out, None, out, kept, bounds, q, lse, form),)
    return (dkdv_launch(q, k, v, out, kept, lse, bounds, k, v, form),)
