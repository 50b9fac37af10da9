"""Flash decoding in Triton: a few queries against many keys, which several programs share.

A program does one split of the keys for the queries of one key/value head, those of all its query heads: keys
are read once a group. What the splits found is merged by a second kernel.

Sources: Flash-Decoding, pytorch.org/blog/flash-decoding (2023); FlashAttention-2, arXiv 2307.08691.
"""

# Triton reads the annotations of a kernel, so its arguments cannot have ours.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from .edges import hide, keys_seen, load_rows
from .ranges import key_range


@triton.jit
def flash_decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    statistics_ptr,
    bounds_ptr,
    stride_qb,
    stride_qh,
    stride_qs,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_ks,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_vd,
    num_kv_heads,
    group_size,
    seqlen_q,
    num_splits,
    left,
    right,
    scale_log2,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
    QUERY_SIGN: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """softmax(q kᵀ · scale) v over ``-left <= k_pos - q_pos <= right`` and the first ``bounds[b, 1]`` keys.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]``; no more than ``BLOCK_Q`` queries a head.
    Where keys are ``SPLIT``, out ``[splits, B, H, Sq, Dv]`` (float32) holds ``Σ w v`` and statistics ``[2,
    splits, B, H, Sq]`` the largest score of each row and ``Σ w``, ``w = exp2((score - largest) ·
    scale_log2)``: from a split's lse, where large logits have swallowed the sum, its weight could not be had
    to float32's precision. Else out ``[B, H, Sq, Dv]`` is finished and statistics is lse ``[B, H, Sq]``.
    """
    num_rows = group_size * seqlen_q
    num_tiles = (num_rows + BLOCK_Q - 1) // BLOCK_Q
    program = tl.program_id(0)
    tile = program % num_tiles
    split = program // num_tiles % num_splits
    group = program // num_tiles // num_splits
    kv_head = group % num_kv_heads
    batch = group // num_kv_heads

    query_start = tl.load(bounds_ptr + 2 * batch)
    key_limit = tl.load(bounds_ptr + 2 * batch + 1)
    lo, hi, begin, _, _, end = key_range(
        0, query_start, key_limit, seqlen_q, left, right, BLOCK_Q, BLOCK_K, HAS_LEFT, HAS_RIGHT
    )
    blocks = (end - begin) // BLOCK_K
    split_keys = (blocks + num_splits - 1) // num_splits * BLOCK_K
    split_begin = tl.minimum(begin + split * split_keys, end)
    split_end = tl.minimum(split_begin + split_keys, end)

    # The queries of a group's heads one after another: rows of out as they lie.
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    row_exists = rows < num_rows
    q_pos = query_start + rows % seqlen_q
    first_key, last_key = keys_seen(q_pos, lo, hi, left, right, BLOCK_Q, HAS_RIGHT)

    # What multiplies a stride is 64 bits wide: index × stride passes 2**31 long before memory ends.
    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    value_dims = tl.arange(0, BLOCK_DV).to(tl.int64)
    columns = tl.arange(0, BLOCK_K)
    wide_batch = batch.to(tl.int64)
    wide_kv_head = kv_head.to(tl.int64)
    wide_columns = columns.to(tl.int64)
    heads = wide_kv_head * group_size + rows // seqlen_q
    queries = (rows % seqlen_q).to(tl.int64)

    q_offsets = (heads * stride_qh + queries * stride_qs)[:, None] + dims[None, :] * stride_qd
    q = tl.load(
        q_ptr + wide_batch * stride_qb + q_offsets,
        mask=row_exists[:, None] & (dims[None, :] < HEAD_DIM),
        other=0.0,
    )
    if QUERY_SIGN != 1:
        q = q * QUERY_SIGN

    k_base = k_ptr + wide_batch * stride_kb + wide_kv_head * stride_kh
    v_base = v_ptr + wide_batch * stride_vb + wide_kv_head * stride_vh
    k_offsets = wide_columns[None, :] * stride_ks + dims[:, None] * stride_kd
    v_offsets = wide_columns[:, None] * stride_vs + value_dims[None, :] * stride_vd

    row_max = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
    row_sum = tl.full([BLOCK_Q], 0.0, dtype=tl.float32)
    acc = tl.full([BLOCK_Q, BLOCK_DV], 0.0, dtype=tl.float32)

    # One loop, masked throughout: what takes the time is reading keys.
    for start in range(split_begin, split_end, BLOCK_K):
        k_ptrs = k_base + tl.cast(start, tl.int64) * stride_ks + k_offsets
        v_ptrs = v_base + tl.cast(start, tl.int64) * stride_vs + v_offsets
        k_pos = start + columns
        # Keys that no query sees are not read: a weight of zero does not stop a NaN.
        seen = (k_pos >= lo) & (k_pos < hi)
        k = tl.load(k_ptrs, mask=seen[None, :] & (dims[:, None] < HEAD_DIM), other=0.0)
        scores = tl.dot(q, k, input_precision="ieee")
        scores = hide(scores, k_pos, first_key, last_key, HAS_LEFT)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        # The maximum of a row that has seen nothing yet is -inf, and -inf - -inf would be NaN.
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        # Subtract, then scale: scaled first, logits of 6e4 lose half a percent of their weights.
        p = tl.exp2((scores - shift[:, None]) * scale_log2)
        rescale = tl.exp2((row_max - shift) * scale_log2)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        row_max = new_max
        v = load_rows(v_ptrs, seen, value_dims, VALUE_DIM, BLOCK_DV, True)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")

    out_rows = group.to(tl.int64) * num_rows + rows
    if SPLIT:
        num_groups = tl.num_programs(0) // num_tiles // num_splits
        all_rows = num_groups.to(tl.int64) * num_rows
        out_rows = split * all_rows + out_rows
        tl.store(statistics_ptr + out_rows, row_max, mask=row_exists)
        tl.store(statistics_ptr + num_splits * all_rows + out_rows, row_sum, mask=row_exists)
    else:
        LN_2: tl.constexpr = 0.6931471805599453
        saw_nothing = row_sum == 0.0
        divisor = tl.where(saw_nothing, 1.0, row_sum)
        lse = tl.where(saw_nothing, float("-inf"), (row_max * scale_log2 + tl.log2(divisor)) * LN_2)
        tl.store(statistics_ptr + out_rows, lse, mask=row_exists)
        acc = acc / divisor[:, None]
    tl.store(
        out_ptr + out_rows[:, None] * VALUE_DIM + value_dims[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=row_exists[:, None] & (value_dims[None, :] < VALUE_DIM),
    )


@triton.jit
def flash_merge_kernel(
    parts_ptr,
    statistics_ptr,
    out_ptr,
    lse_ptr,
    num_splits,
    scale_log2,
    VALUE_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """``out = Σ exp2((largest_s - largest) · scale_log2) · parts_s / Σ exp2(…) · sum_s`` over the splits s.

    parts ``[splits, B, H, Sq, Dv]``, statistics ``[2, splits, B, H, Sq]`` (largest, sum) → out ``[B, H, Sq,
    Dv]``, lse ``[B, H, Sq]``. One program a row and ``BLOCK_C`` columns; splits are added in their order.
    """
    NUM_BLOCKS: tl.constexpr = VALUE_DIM // BLOCK_C + (VALUE_DIM % BLOCK_C > 0) + (VALUE_DIM == 0)
    program = tl.program_id(0)
    block = program % NUM_BLOCKS
    row = (program // NUM_BLOCKS).to(tl.int64)
    num_rows = (tl.num_programs(0) // NUM_BLOCKS).to(tl.int64)
    splits = tl.arange(0, BLOCK_S)
    exists = splits < num_splits
    split_rows = splits.to(tl.int64) * num_rows + row
    largest = tl.load(statistics_ptr + split_rows, mask=exists, other=float("-inf"))
    sums = tl.load(statistics_ptr + num_splits * num_rows + split_rows, mask=exists, other=0.0)
    row_max = tl.max(largest, 0)
    shift = tl.where(row_max == float("-inf"), 0.0, row_max)
    weights = tl.exp2((largest - shift) * scale_log2)
    row_sum = tl.sum(sums * weights, 0)

    columns = block * BLOCK_C + tl.arange(0, BLOCK_C)
    parts = tl.load(
        parts_ptr + split_rows[:, None] * VALUE_DIM + columns[None, :],
        mask=exists[:, None] & (columns[None, :] < VALUE_DIM),
        other=0.0,
    )
    LN_2: tl.constexpr = 0.6931471805599453
    saw_nothing = row_sum == 0.0
    divisor = tl.where(saw_nothing, 1.0, row_sum)
    out = tl.sum(parts * weights[:, None], 0) / divisor
    tl.store(out_ptr + row * VALUE_DIM + columns, out.to(out_ptr.dtype.element_ty), mask=columns < VALUE_DIM)
    lse = tl.where(saw_nothing, float("-inf"), (row_max * scale_log2 + tl.log2(divisor)) * LN_2)
    tl.store(lse_ptr + row, lse, mask=block == 0)
