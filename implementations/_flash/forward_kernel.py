"""The FlashAttention-2 forward kernel in Triton: one program a (batch row, query head, query tile).

In: q, k, v ``[B, H or G, S, D]`` by pointer and strides, and ``bounds[B, 2]`` (int32: absolute position of
the first query, number of keys). Out, contiguous: out ``[B, H, Sq, Dv]``, lse ``[B, H, Sq]`` (float32,
natural log) and, for a backward pass, statistics ``[2, B, H, Sq]`` (float32).

Source: FlashAttention-2, arXiv 2307.08691 (queries outside, keys inside); online softmax, arXiv 1805.02867.
"""

# Triton reads the annotations of a kernel, so its arguments cannot have ours.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from .edges import hide, keys_seen, load_rows
from .ranges import key_range


@triton.jit
def flash_forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
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
    num_heads,
    group_size,
    seqlen_q,
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
    TMA: tl.constexpr,
):
    """softmax(q kᵀ · scale) v over ``-left <= k_pos - q_pos <= right`` and the first ``bounds[b, 1]`` keys.

    ``scale_log2`` is ``|scale| · log2(e)`` and positive; the sign of scale (0 for none) is ``QUERY_SIGN``, so
    that the largest score is the largest logit. Statistics, unless their pointer is None: the largest score
    of each row (+inf where it saw nothing), then log2 of its sum of ``exp2((score - largest) · scale_log2)``.
    From lse, where large logits swallow the sum, weights could not be had again to float32's precision.

    With ``TMA``, ``k_ptr`` and ``v_ptr`` are tensor descriptors, and tiles of them are fetched whole.
    """
    num_tiles = (seqlen_q + BLOCK_Q - 1) // BLOCK_Q
    program = tl.program_id(0)
    # Heads outside, tiles inside: programs that run together share keys in L2. The last tile first: it is the
    # longest under a causal mask.
    tile = num_tiles - 1 - program % num_tiles
    head = program // num_tiles % num_heads
    batch = program // num_tiles // num_heads

    query_start = tl.load(bounds_ptr + 2 * batch)
    key_limit = tl.load(bounds_ptr + 2 * batch + 1)

    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    lo, hi, begin, full_begin, full_end, end = key_range(
        tile, query_start, key_limit, seqlen_q, left, right, BLOCK_Q, BLOCK_K, HAS_LEFT, HAS_RIGHT
    )
    first_key, last_key = keys_seen(query_start + rows, lo, hi, left, right, BLOCK_Q, HAS_RIGHT)

    # What multiplies a stride is 64 bits wide: index × stride passes 2**31 long before memory ends.
    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    value_dims = tl.arange(0, BLOCK_DV).to(tl.int64)
    columns = tl.arange(0, BLOCK_K)
    row_exists = rows < seqlen_q
    wide_batch = batch.to(tl.int64)
    wide_rows = rows.to(tl.int64)
    wide_columns = columns.to(tl.int64)

    q_base = q_ptr + wide_batch * stride_qb + head.to(tl.int64) * stride_qh
    q_offsets = wide_rows[:, None] * stride_qs + dims[None, :] * stride_qd
    q = tl.load(q_base + q_offsets, mask=row_exists[:, None] & (dims[None, :] < HEAD_DIM), other=0.0)
    if QUERY_SIGN != 1:
        q = q * QUERY_SIGN

    kv_head = head // group_size
    if not TMA:
        k_base = k_ptr + wide_batch * stride_kb + kv_head.to(tl.int64) * stride_kh
        v_base = v_ptr + wide_batch * stride_vb + kv_head.to(tl.int64) * stride_vh
        k_offsets = wide_columns[:, None] * stride_ks + dims[None, :] * stride_kd
        v_offsets = wide_columns[:, None] * stride_vs + value_dims[None, :] * stride_vd

    row_max = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
    row_sum = tl.full([BLOCK_Q], 0.0, dtype=tl.float32)
    acc = tl.full([BLOCK_Q, BLOCK_DV], 0.0, dtype=tl.float32)

    # Two copies of one loop: key tiles at the edges, where pairs are hidden, then full tiles.
    for copy in tl.static_range(2):
        if copy == 0:
            copy_begin = begin
            copy_end = end - (full_end - full_begin)
        else:
            copy_begin = full_begin
            copy_end = full_end
        for step in range(copy_begin, copy_end, BLOCK_K):
            start = tl.cast(step, tl.int32)
            if copy == 0:
                start = tl.where(start < full_begin, start, start + full_end - full_begin)
            k_pos = start + columns
            seen = (k_pos >= lo) & (k_pos < hi)
            if TMA:
                k = k_ptr.load([batch, kv_head, start, 0]).reshape(BLOCK_K, BLOCK_D)
            else:
                k_ptrs = k_base + tl.cast(start, tl.int64) * stride_ks + k_offsets
                k = load_rows(k_ptrs, seen, dims, HEAD_DIM, BLOCK_D, copy == 0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            if copy == 0:
                scores = hide(scores, k_pos, first_key, last_key, HAS_LEFT)
            new_max = tl.maximum(row_max, tl.max(scores, 1))
            shift = new_max
            if copy == 0:
                # The maximum of a row that has seen nothing yet is -inf, and -inf - -inf would be NaN.
                shift = tl.where(new_max == float("-inf"), 0.0, new_max)
            # Subtract, then scale: scaled first, logits of 6e4 lose half a percent of their weights.
            p = tl.exp2((scores - shift[:, None]) * scale_log2)
            rescale = tl.exp2((row_max - shift) * scale_log2)
            row_sum = row_sum * rescale + tl.sum(p, 1)
            row_max = new_max
            if TMA:
                v = v_ptr.load([batch, kv_head, start, 0]).reshape(BLOCK_K, BLOCK_DV)
                if copy == 0:
                    v = tl.where(seen[:, None], v, 0.0)
            else:
                v_ptrs = v_base + tl.cast(start, tl.int64) * stride_vs + v_offsets
                v = load_rows(v_ptrs, seen, value_dims, VALUE_DIM, BLOCK_DV, copy == 0)
            acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")

    LN_2: tl.constexpr = 0.6931471805599453
    saw_nothing = row_sum == 0.0
    divisor = tl.where(saw_nothing, 1.0, row_sum)
    lse = tl.where(saw_nothing, float("-inf"), (row_max * scale_log2 + tl.log2(divisor)) * LN_2)
    out_rows = (program // num_tiles).to(tl.int64) * seqlen_q + rows
    if statistics_ptr is not None:
        num_rows = (tl.num_programs(0) // num_tiles).to(tl.int64) * seqlen_q
        largest = tl.where(saw_nothing, float("inf"), row_max)
        tl.store(statistics_ptr + out_rows, largest, mask=row_exists)
        tl.store(statistics_ptr + num_rows + out_rows, tl.log2(divisor), mask=row_exists)
    tl.store(lse_ptr + out_rows, lse, mask=row_exists)
    tl.store(
        out_ptr + out_rows[:, None] * VALUE_DIM + value_dims[None, :],
        (acc / divisor[:, None]).to(out_ptr.dtype.element_ty),
        mask=row_exists[:, None] & (value_dims[None, :] < VALUE_DIM),
    )
