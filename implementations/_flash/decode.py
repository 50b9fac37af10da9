"""Flash decoding as operators, `attnbench::flash_decode` and `attnbench::flash_merge`.

In: few queries, many keys and values. Out: out, lse; no gradients.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.masks import Band
from attnbench.contract.problem import Problem
from attnbench.implementations._shared.operators import LIBRARY, bounds, define, result, run

from .decode_kernel import flash_decode_kernel, flash_merge_kernel
from .decode_launch import decode_launch, merge_launch
from .launch import Form
from .splits import DecodePrograms, visited_blocks
from .tiles import Tile, padded_width

define(
    "flash_decode(Tensor q, Tensor k, Tensor v, int[] query_starts, int[] key_limits, int? left, int? right, "
    "float scale, int[] tile, int num_splits) -> (Tensor out, Tensor statistics)"
)
define(
    "flash_merge(Tensor parts, Tensor statistics, float scale, ScalarType dtype) -> (Tensor out, Tensor lse)"
)


def flash_decode(q: Tensor, k: Tensor, v: Tensor, *, problem: Problem) -> AttentionOutput:
    """``softmax(q kᵀ · scale + mask) v`` and its float32 ``lse``, with keys shared out among programs.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``, any strides → out ``[B, H, Sq, Dv]``, lse
    ``[B, H, Sq]``. Rows that see no key give 0 and -inf; keys that no query sees are never read. The same
    problem on the same kind of GPU gives the same bits.

    Raises:
        UsageError: the tensors are on the CPU and triton does not interpret.
    """
    programs, operators = DecodePrograms(problem), torch.ops.attnbench
    scale, band = problem.softmax_scale, programs.band
    out, statistics = operators.flash_decode(
        q,
        k,
        v,
        problem.query_starts,
        problem.key_limits,
        band.left,
        band.right,
        scale,
        programs.tile,
        programs.splits,
    )
    if programs.is_split:
        out, statistics = operators.flash_merge(out, statistics, scale, q.dtype)
    return AttentionOutput(out, statistics)


def _result_shapes(q: Tensor, v: Tensor, num_splits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of out and statistics, of the parts if there are several."""
    rows = tuple(q.shape[:3])
    if num_splits == 1:
        return (*rows, v.shape[3]), rows
    return (num_splits, *rows, v.shape[3]), (2, num_splits, *rows)


@torch.library.impl(LIBRARY, "flash_decode", "CompositeExplicitAutograd")
def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    left: int | None,
    right: int | None,
    scale: float,
    tile: Sequence[int],
    num_splits: int,
) -> tuple[Tensor, Tensor]:
    out_shape, statistics_shape = _result_shapes(q, v, num_splits)
    dtype = q.dtype if num_splits == 1 else torch.float32
    if 0 in (q.shape[0], q.shape[2], k.shape[2]):
        statistics = q.new_full(statistics_shape, -math.inf, dtype=torch.float32)
        if num_splits > 1:
            statistics[1] = 0
        return q.new_zeros(out_shape, dtype=dtype), statistics
    out = result(q, out_shape, dtype, math.nan)
    statistics = result(q, statistics_shape, torch.float32, math.nan)
    launch = decode_launch(
        q,
        k,
        v,
        out,
        statistics,
        bounds(tuple(query_starts), tuple(key_limits), q.device),
        Form(left, right, scale, Tile(*tile)),
        num_splits,
    )
    run(launch, flash_decode_kernel, q.device)
    return out, statistics


@torch.library.impl(LIBRARY, "flash_merge", "CompositeExplicitAutograd")
def _merge(parts: Tensor, statistics: Tensor, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = parts.shape[1:]
    if 0 in shape[:3]:
        return _merge_shapes(parts, statistics, scale, dtype)
    out = result(parts, tuple(shape), dtype, math.nan)
    lse = result(parts, tuple(shape[:3]), torch.float32, math.nan)
    run(merge_launch(parts, statistics, out, lse, scale), flash_merge_kernel, parts.device)
    return out, lse


def _decode_shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    num_splits = rest[-1]
    out_shape, statistics_shape = _result_shapes(q, v, num_splits)
    dtype = q.dtype if num_splits == 1 else torch.float32
    return q.new_empty(out_shape, dtype=dtype), q.new_empty(statistics_shape, dtype=torch.float32)


def _merge_shapes(
    parts: Tensor, statistics: Tensor, scale: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    shape = parts.shape[1:]
    return parts.new_empty(shape, dtype=dtype), statistics.new_empty(shape[:3])


def _refuse(ctx: Any, *_: Any) -> tuple[Any, ...]:
    raise RuntimeError("the decoding kernels have no gradients: attnbench::flash_forward has")


for _name, _fake in (("attnbench::flash_decode", _decode_shapes), ("attnbench::flash_merge", _merge_shapes)):
    torch.library.register_fake(_name, _fake, lib=LIBRARY)
    torch.library.register_autograd(_name, _refuse, lib=LIBRARY)


@register_flop_formula(torch.ops.attnbench.flash_decode)
def _decode_flops(q: Any, k: Any, v: Any, *form: Any, **_: Any) -> int:
    query_starts, key_limits, left, right, _scale, tile, _splits = form
    _, num_heads, seqlen_q, head_dim = q
    block_q, block_k, *_ = tile
    if 0 in (seqlen_q, k[2]):
        return 0
    blocks = visited_blocks(Band(left, right), seqlen_q, query_starts, key_limits, block_k)
    row_tiles = -(-(num_heads // k[1] * seqlen_q) // block_q)
    width = padded_width(head_dim) + padded_width(v[3])
    return int(2 * k[1] * row_tiles * blocks * block_q * block_k * width)


@register_flop_formula(torch.ops.attnbench.flash_merge)
def _merge_flops(*_: Any, **__: Any) -> int:
    """No matmuls."""
    return 0
