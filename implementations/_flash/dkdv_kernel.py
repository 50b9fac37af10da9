"""The second FlashAttention-2 backward kernel in Triton: dk and dv, one program a key tile, no atomics.

With p and ds as in the first (`dq_kernel.py`): dk = dsᵀ q · scale, dv = pᵀ do.

In: q, k, v and the upstream gradient do by pointer and strides; statistics and ``bounds`` as the forward
kernel wrote or read them, delta from the first kernel. Out, contiguous: dk ``[B, G, Sk, D]`` and dv ``[B, G,
Sk, Dv]``, summed over the heads of a group.

Source: FlashAttention-2, arXiv 2307.08691, algorithm 2.
"""

# Triton reads the annotations of a kernel, so its arguments cannot have ours.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from .edges import load_rows
from .ranges import query_range


@triton.jit
def flash_dkdv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    delta_ptr,
    statistics_ptr,
    bounds_ptr,
    dk_ptr,
    dv_ptr,
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
    num_kv_heads,
    group_size,
    seqlen_q,
    seqlen_k,
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
    """dk and dv of one key tile and key/value head: one program each, over all queries of the group's heads.

    Tiles are held transposed, ``[keys, queries]``, so that weights and their gradients are left operands that
    stay in registers. With ``TMA``, ``q_ptr`` and ``do_ptr`` are tensor descriptors.
    """
    num_tiles = (seqlen_k + BLOCK_K - 1) // BLOCK_K
    program = tl.program_id(0)
    # The first tile first: it is the longest under a causal mask.
    tile = program % num_tiles
    kv_head = program // num_tiles % num_kv_heads
    batch = program // num_tiles // num_kv_heads

    query_start = tl.load(bounds_ptr + 2 * batch)
    key_limit = tl.load(bounds_ptr + 2 * batch + 1)

    first_key, last_key, lo, hi, begin, full_begin, full_end, end = query_range(
        tile, query_start, key_limit, seqlen_q, left, right, BLOCK_Q, BLOCK_K, HAS_LEFT, HAS_RIGHT
    )

    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    value_dims = tl.arange(0, BLOCK_DV).to(tl.int64)
    wide_batch = batch.to(tl.int64)
    wide_kv_head = kv_head.to(tl.int64)
    k_pos = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    wide_k_pos = k_pos.to(tl.int64)
    seen = (k_pos >= first_key) & (k_pos < last_key)
    # First and last query that sees each key; a key that nobody sees has a first one behind the last.
    first_row = tl.where(seen, 0, seqlen_q)
    if HAS_RIGHT:
        first_row = tl.maximum(first_row, k_pos - right - query_start)
    last_row = k_pos + left - query_start

    k_base = k_ptr + wide_batch * stride_kb + wide_kv_head * stride_kh
    v_base = v_ptr + wide_batch * stride_vb + wide_kv_head * stride_vh
    k = tl.load(
        k_base + wide_k_pos[:, None] * stride_ks + dims[None, :] * stride_kd,
        mask=seen[:, None] & (dims[None, :] < HEAD_DIM),
        other=0.0,
    )
    v = tl.load(
        v_base + wide_k_pos[:, None] * stride_vs + value_dims[None, :] * stride_vd,
        mask=seen[:, None] & (value_dims[None, :] < VALUE_DIM),
        other=0.0,
    )
    if QUERY_SIGN != 1:
        k = k * QUERY_SIGN

    block_rows = tl.arange(0, BLOCK_Q)
    wide_block_rows = block_rows.to(tl.int64)
    if not TMA:
        q_base = q_ptr + wide_batch * stride_qb
        do_base = do_ptr + wide_batch * stride_dob
        q_offsets = wide_block_rows[:, None] * stride_qs + dims[None, :] * stride_qd
        do_offsets = wide_block_rows[:, None] * stride_dos + value_dims[None, :] * stride_dod

    num_rows = (tl.num_programs(0) // num_tiles).to(tl.int64) * group_size * seqlen_q

    dk = tl.full([BLOCK_K, BLOCK_D], 0.0, dtype=tl.float32)
    dv = tl.full([BLOCK_K, BLOCK_DV], 0.0, dtype=tl.float32)
    # One flat loop over (head of the group, query block), in two copies: blocks at the edges, full blocks.
    for copy in tl.static_range(2):
        blocks = full_end - full_begin
        if copy == 0:
            blocks = end - begin - blocks
        for step in range(0, group_size * blocks):
            block = step % blocks
            if copy == 0:
                block = begin + block
                block = tl.where(block < full_begin, block, block + full_end - full_begin)
            else:
                block = full_begin + block
            head = kv_head * group_size + step // blocks
            rows = block * BLOCK_Q + block_rows
            wide_head = tl.cast(head, tl.int64)
            seeing = (rows >= lo) & (rows < hi)
            if TMA:
                q = q_ptr.load([batch, head, block * BLOCK_Q, 0]).reshape(BLOCK_Q, BLOCK_D)
                do = do_ptr.load([batch, head, block * BLOCK_Q, 0]).reshape(BLOCK_Q, BLOCK_DV)
            else:
                wide_row = tl.cast(block * BLOCK_Q, tl.int64)
                q_ptrs = q_base + wide_head * stride_qh + wide_row * stride_qs + q_offsets
                do_ptrs = do_base + wide_head * stride_doh + wide_row * stride_dos + do_offsets
                q = load_rows(q_ptrs, seeing, dims, HEAD_DIM, BLOCK_D, copy == 0)
                do = load_rows(do_ptrs, seeing, value_dims, VALUE_DIM, BLOCK_DV, copy == 0)
            if k.dtype == tl.float32:
                # Operand for operand as in the forward kernel: a library that multiplies for the interpreter
                # may sum in another order, and a key seen alone has the weight 1 only by the same score.
                scores = tl.trans(tl.dot(q, tl.trans(k), input_precision="ieee"))
            else:
                scores = tl.dot(k, tl.trans(q), input_precision="ieee")
            # Statistics are loaded where they are used: held over a product, they would be spilled.
            row_offsets = (wide_batch * num_kv_heads * group_size + wide_head) * seqlen_q + rows
            if copy == 0:
                visible = rows[None, :] >= first_row[:, None]
                if HAS_LEFT:
                    visible = visible & (rows[None, :] <= last_row[:, None])
                scores = tl.where(visible, scores, float("-inf"))
                # A query that sees no key of this tile has a largest score of +inf, and with it no weight.
                largest = tl.load(statistics_ptr + row_offsets, mask=seeing, other=float("inf"))
                log2_sum = tl.load(statistics_ptr + num_rows + row_offsets, mask=seeing, other=0.0)
            else:
                largest = tl.load(statistics_ptr + row_offsets)
                log2_sum = tl.load(statistics_ptr + num_rows + row_offsets)
            p = tl.exp2((scores - largest[None, :]) * scale_log2 - log2_sum[None, :])
            dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
            if k.dtype == tl.float32:  # operand for operand as in the kernel of dq, whose delta is made of it
                dp = tl.trans(tl.dot(do, tl.trans(v), input_precision="ieee"))
            else:
                dp = tl.dot(v, tl.trans(do), input_precision="ieee")
            if copy == 0:
                delta = tl.load(delta_ptr + row_offsets, mask=seeing, other=0.0)
            else:
                delta = tl.load(delta_ptr + row_offsets)
            ds = p * (dp - delta[None, :])
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")

    k_rows = (program // num_tiles).to(tl.int64) * seqlen_k + k_pos
    exists = k_pos < seqlen_k
    tl.store(
        dk_ptr + k_rows[:, None] * HEAD_DIM + dims[None, :],
        (dk * scale).to(dk_ptr.dtype.element_ty),
        mask=exists[:, None] & (dims[None, :] < HEAD_DIM),
    )
    tl.store(
        dv_ptr + k_rows[:, None] * VALUE_DIM + value_dims[None, :],
        dv.to(dv_ptr.dtype.element_ty),
        mask=exists[:, None] & (value_dims[None, :] < VALUE_DIM),
    )
