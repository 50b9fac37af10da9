"""What the FlashAttention kernels are launched with. In: tensors, a band and a tile. Out: a `Launch`.

Tensors: q and its gradients ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``, out and do
``[B, H, Sq, Dv]``, lse, dlse and delta ``[B, H, Sq]``, statistics ``[2, B, H, Sq]``, bounds ``[B, 2]``
(int32). q, k, v and do have any strides, the others are contiguous.
"""

import math
from typing import Any, NamedTuple

from torch import Tensor

from attnbench.contract.launch import Launch, meta_inputs
from attnbench.contract.problem import Problem

from ._flash_cost import effective_band
from ._flash_tiles import Tile, padded_width, tile_for

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
    results = {"out_ptr": out, "lse_ptr": lse, "statistics_ptr": statistics}
    return _launch(_query_tiles(q, form), {**_inputs(q, k, v, form), "bounds_ptr": bounds, **results}, form)


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
        **_inputs(q, k, v, form),
        **_upstream(do, form),
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
        **_inputs(q, k, v, form),
        **_upstream(do, form),
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
    _, _, num_warps, num_stages = form.tile
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    return Launch((programs,), arguments, options)


def _query_tiles(q: Tensor, form: Form) -> int:
    batch, num_heads, seqlen_q, _ = q.shape
    return -(-seqlen_q // form.tile.block_q) * batch * num_heads


def _inputs(q: Tensor, k: Tensor, v: Tensor, form: Form) -> dict[str, Any]:
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
        "scale_log2": abs(scale or 1.0) * LOG2_E,
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_D": padded_width(head_dim),
        "BLOCK_DV": padded_width(value_dim),
        "BLOCK_Q": form.tile.block_q,
        "BLOCK_K": form.tile.block_k,
        "HAS_LEFT": form.left is not None,
        "HAS_RIGHT": form.right is not None,
        "QUERY_SIGN": (scale > 0) - (scale < 0),
    }


def _upstream(do: Tensor, form: Form) -> dict[str, Any]:
    """Return the arguments that the backward kernels have besides."""
    return {"do_ptr": do, **_strides("do", do), "scale": form.scale}


def _strides(name: str, tensor: Tensor) -> dict[str, int]:
    return {
        f"stride_{name}{axis}": stride
        for axis, stride in zip(("b", "h", "s", "d"), tensor.stride(), strict=True)
    }


class _Meta:
    """The tensors of a problem on the meta device, and its form for a kernel on a target."""

    def __init__(self, problem: Problem) -> None:
        import torch

        self.problem = problem
        self.q, self.k, self.v = meta_inputs(problem)
        self.out = self.q.new_empty(*self.q.shape[:3], problem.head_dim_v)
        self.lse = self.q.new_empty(self.q.shape[:3], dtype=torch.float32)
        self.statistics = self.lse.new_empty((2, *self.lse.shape))
        self.bounds = self.q.new_empty((problem.batch, 2), dtype=torch.int32)

    def form(self, kernel: str, target: str) -> Form:
        band, scale = effective_band(self.problem), self.problem.softmax_scale
        return Form(band.left, band.right, scale, tile_for(self.problem, target, kernel))


def forward_variants(problem: Problem, target: str) -> tuple[Launch, ...]:
    """Return the one launch for a problem on a target, on tensors of the meta device."""
    x = _Meta(problem)
    statistics = x.statistics if problem.needs_gradients else None
    form = x.form("forward", target)
    return (forward_launch(x.q, x.k, x.v, x.out, x.lse, statistics, x.bounds, form),)


def dq_variants(problem: Problem, target: str) -> tuple[Launch, ...]:
    """Return the one launch of a backward pass without a gradient of lse; none for a problem without."""
    if not problem.needs_gradients:
        return ()
    x = _Meta(problem)
    do, form = x.out, x.form("dq", target)
    return (dq_launch(x.q, x.k, x.v, do, None, x.out, x.statistics, x.bounds, x.q, x.lse, form),)


def dkdv_variants(problem: Problem, target: str) -> tuple[Launch, ...]:
    """Return the one launch of a backward pass; none for a problem without."""
    if not problem.needs_gradients:
        return ()
    x = _Meta(problem)
    do, form = x.out, x.form("dkdv", target)
    return (dkdv_launch(x.q, x.k, x.v, do, x.statistics, x.lse, x.bounds, x.k, x.v, form),)
