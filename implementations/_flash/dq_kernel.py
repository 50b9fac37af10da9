"""The first FlashAttention-2 backward kernel in Triton: dq and delta, one program a query tile of a head.

With s = q kᵀ · scale, p the softmax weights and dp = do vᵀ: delta = rowsum(do ∘ out) - dlse, ds = p ∘ (dp -
delta), dq = ds k · scale. In float32 delta is made once more from the p and dp of the loop, and dq corrected
(docs/decisions/0018-delta-again.md). Weights are made again from the statistics that the forward kernel kept;
scores are never held. Every sum is made by one program in a fixed order, without atomics, so gradients are
the same in every run.

In: q, k, v and the upstream gradient do by pointer and strides; out, dlse (or None), statistics and
``bounds`` as the forward kernel wrote or read them. Out, contiguous: dq ``[B, H, Sq, D]`` and delta
``[B, H, Sq]`` (float32).

Source: FlashAttention-2, arXiv 2307.08691, algorithm 2, its loop over queries in a kernel of its own.
"""

# Triton reads the annotations of a kernel, so its arguments cannot have ours.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from .edges import hide, keys_seen, load_rows
from .ranges import key_range


@triton.jit
def flash_dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    out_ptr,
    dlse_ptr,
    statistics_ptr,
    bounds_ptr,
    dq_ptr,
    delta_ptr,
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
    stride_dob,
    stride_doh,
    stride_dos,
    stride_dod,
    num_heads,
    group_size,
    seqlen_q,
    left,
    right,
    scale,
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
    """dq and delta of one query tile; programs, loops and ``TMA`` as in the forward kernel."""
    num_tiles = (seqlen_q + BLOCK_Q - 1) // BLOCK_Q
    program = tl.program_id(0)
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

    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    value_dims = tl.arange(0, BLOCK_DV).to(tl.int64)
    columns = tl.arange(0, BLOCK_K)
    row_exists = rows < seqlen_q
    wide_batch = batch.to(tl.int64)
    wide_head = head.to(tl.int64)
    wide_rows = rows.to(tl.int64)
    wide_columns = columns.to(tl.int64)
    q_mask = row_exists[:, None] & (dims[None, :] < HEAD_DIM)
    do_mask = row_exists[:, None] & (value_dims[None, :] < VALUE_DIM)

    q_base = q_ptr + wide_batch * stride_qb + wide_head * stride_qh
    q = tl.load(q_base + wide_rows[:, None] * stride_qs + dims[None, :] * stride_qd, mask=q_mask, other=0.0)
    if QUERY_SIGN != 1:
        q = q * QUERY_SIGN
    do_base = do_ptr + wide_batch * stride_dob + wide_head * stride_doh
    do = tl.load(
        do_base + wide_rows[:, None] * stride_dos + value_dims[None, :] * stride_dod, mask=do_mask, other=0.0
    )

    out_rows = (program // num_tiles).to(tl.int64) * seqlen_q + rows
    num_rows = (tl.num_programs(0) // num_tiles).to(tl.int64) * seqlen_q
    out = tl.load(out_ptr + out_rows[:, None] * VALUE_DIM + value_dims[None, :], mask=do_mask, other=0.0)
    delta = tl.sum(do.to(tl.float32) * out.to(tl.float32), 1)
    if dlse_ptr is not None:
        dlse = tl.load(dlse_ptr + out_rows, mask=row_exists, other=0.0)
        delta -= dlse
    if q.dtype != tl.float32:
        tl.store(delta_ptr + out_rows, delta, mask=row_exists)
    # A row that is none, or saw nothing, has a largest score of +inf: all of its weights are 0.
    largest = tl.load(statistics_ptr + out_rows, mask=row_exists, other=float("inf"))
    log2_sum = tl.load(statistics_ptr + num_rows + out_rows, mask=row_exists, other=0.0)

    kv_head = head // group_size
    if not TMA:
        k_base = k_ptr + wide_batch * stride_kb + kv_head.to(tl.int64) * stride_kh
        v_base = v_ptr + wide_batch * stride_vb + kv_head.to(tl.int64) * stride_vh
        k_offsets = wide_columns[:, None] * stride_ks + dims[None, :] * stride_kd
        v_offsets = wide_columns[:, None] * stride_vs + value_dims[None, :] * stride_vd

    dq = tl.full([BLOCK_Q, BLOCK_D], 0.0, dtype=tl.float32)
    if q.dtype == tl.float32:
        mean_k = tl.full([BLOCK_Q, BLOCK_D], 0.0, dtype=tl.float32)
        mean_dp = tl.full([BLOCK_Q], 0.0, dtype=tl.float32)
        total = tl.full([BLOCK_Q], 0.0, dtype=tl.float32)
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
                v = v_ptr.load([batch, kv_head, start, 0]).reshape(BLOCK_K, BLOCK_DV)
                if copy == 0:
                    k = tl.where(seen[:, None], k, 0.0)
                    v = tl.where(seen[:, None], v, 0.0)
            else:
                k_ptrs = k_base + tl.cast(start, tl.int64) * stride_ks + k_offsets
                v_ptrs = v_base + tl.cast(start, tl.int64) * stride_vs + v_offsets
                k = load_rows(k_ptrs, seen, dims, HEAD_DIM, BLOCK_D, copy == 0)
                v = load_rows(v_ptrs, seen, value_dims, VALUE_DIM, BLOCK_DV, copy == 0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            if copy == 0:
                scores = hide(scores, k_pos, first_key, last_key, HAS_LEFT)
            p = tl.exp2((scores - largest[:, None]) * scale_log2 - log2_sum[:, None])
            dp = tl.dot(do, tl.trans(v), input_precision="ieee")
            ds = p * (dp - delta[:, None])
            dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
            if q.dtype == tl.float32:
                mean_k = tl.dot(p, k, mean_k, input_precision="ieee")
                mean_dp += tl.sum(p * dp, 1)
                total += tl.sum(p, 1)

    if q.dtype == tl.float32:
        # A mean of the very dp that it is subtracted from: what they were rounded by cancels.
        again = mean_dp / tl.where(total == 0.0, 1.0, total)
        if dlse_ptr is not None:
            again -= dlse
        dq += (delta - again)[:, None] * mean_k
        tl.store(delta_ptr + out_rows, again, mask=row_exists)
    tl.store(
        dq_ptr + out_rows[:, None] * HEAD_DIM + dims[None, :],
        (dq * scale).to(dq_ptr.dtype.element_ty),
        mask=q_mask,
    )
