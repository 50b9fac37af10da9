"""What the decoding kernels are launched with. In: tensors, a band and a tile. Out: a `Launch`.

Tensors: q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]`` and v ``[B, G, Sk, Dv]`` of any strides; the others are
contiguous: parts ``[splits, B, H, Sq, Dv]``, statistics ``[2, splits, B, H, Sq]``, out ``[B, H, Sq, Dv]``,
lse ``[B, H, Sq]``, bounds ``[B, 2]`` (int32).
"""

from torch import Tensor

from attnbench.contract.launch import Launch, meta_inputs
from attnbench.contract.problem import Problem

from .launch import Form, input_arguments, log2_scale, tile_options
from .splits import DecodePrograms, merged_blocks, merged_columns, padded_splits

MERGE_WARPS = 4


def decode_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    statistics: Tensor,
    bounds: Tensor,
    form: Form,
    num_splits: int,
) -> Launch:
    """Return the launch: one program a (batch row, key/value head, split, tile of the group's queries).

    With one split out is finished and statistics is lse; else they are parts and their statistics.
    """
    batch, num_kv_heads = k.shape[:2]
    arguments = input_arguments(q, k, v, form)
    rows = arguments["group_size"] * arguments["seqlen_q"]
    del arguments["num_heads"]
    arguments |= {
        "out_ptr": out,
        "statistics_ptr": statistics,
        "bounds_ptr": bounds,
        "num_kv_heads": num_kv_heads,
        "num_splits": num_splits,
        "SPLIT": num_splits > 1,
    }
    grid = (-(-rows // form.tile.block_q) * num_splits * batch * num_kv_heads,)
    return Launch(grid, arguments, tile_options(form.tile))


def merge_launch(parts: Tensor, statistics: Tensor, out: Tensor, lse: Tensor, scale: float) -> Launch:
    """Return the launch that merges the splits: one program a row and block of columns."""
    num_splits, *rows, value_dim = parts.shape
    arguments = {
        "parts_ptr": parts,
        "statistics_ptr": statistics,
        "out_ptr": out,
        "lse_ptr": lse,
        "num_splits": num_splits,
        "scale_log2": log2_scale(scale),
        "VALUE_DIM": value_dim,
        "BLOCK_S": padded_splits(num_splits),
        "BLOCK_C": merged_columns(value_dim),
    }
    programs = rows[0] * rows[1] * rows[2] * merged_blocks(value_dim)
    return Launch((programs,), arguments, {"num_warps": MERGE_WARPS, "enable_fp_fusion": True})


def decode_launches_on_meta(kernel: str, problem: Problem, target: str) -> tuple[Launch, ...]:
    """Return the one launch of a kernel (``decode`` or ``merge``) for a problem on a target, or none.

    Tensors are contiguous and on the meta device.
    """
    import torch

    programs = DecodePrograms(problem, target)
    if kernel not in programs.kernels:
        return ()
    q, k, v = meta_inputs(problem)
    out = q.new_empty(*q.shape[:3], problem.head_dim_v)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    parts, statistics = out, lse
    if programs.is_split:
        parts = lse.new_empty(programs.splits, *out.shape)
        statistics = lse.new_empty(2, programs.splits, *lse.shape)
    if kernel == "merge":
        return (merge_launch(parts, statistics, out, lse, problem.softmax_scale),)
    bounds = q.new_empty((problem.batch, 2), dtype=torch.int32)
    form = Form(programs.band.left, programs.band.right, problem.softmax_scale, programs.tile)
    return (decode_launch(q, k, v, parts, statistics, bounds, form, programs.splits),)
