"""The gradients of linear attention in Triton, parallel over chunks.

Letters, layouts and forms of the products are those of the forward kernels; see there.

With upstream gradients ``do``, denominators t, ``δ_i = do_i · out_i`` and, from the end of the sequence, the
state ``R_c = Σ_{i after c} (a_i / t_i)ᵀ [do_i, -δ_i]``

    ``dq_i = φ'(q_i) / t_i · (do_i S_cᵀ - δ_i Σ b_j + Σ_{j in c, j ≤ i} (do_i · v_j - δ_i) b_j)``
    ``dv_j = b_j R_c + Σ_{i in c, i ≥ j} (b_j · a_i) / t_i · do_i``
    ``dk_j = φ'(k_j) · ([v_j, 1] R_cᵀ + Σ_{i in c, i ≥ j} (v_j · do_i - δ_i) / t_i · a_i)``

``linear_dq_kernel`` also writes ``-δ / t`` ``[B, H, Sq]`` (float32) for ``linear_query_states_kernel`` and
``linear_keys_gradient_kernel``, which adds up over the heads of a group: nothing is atomic. Gradients are
contiguous and written whole, 0 where nothing is seen. As in FlashAttention, δ is that of the rounded output.
"""

# Triton reads the annotations of a kernel, so its arguments cannot have ours.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from .forward_kernel import feature, operand, product_with_state


@triton.jit
def slope(x):
    """``φ'(x) = exp(min(x, 0))``."""
    return tl.exp(tl.minimum(x.to(tl.float32), 0.0))


@triton.jit
def linear_dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_ptr,
    out_ptr,
    total_ptr,
    states_ptr,
    dq_ptr,
    drop_ptr,
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
    stride_gb,
    stride_gh,
    stride_gs,
    stride_gd,
    num_heads,
    group_size,
    seqlen_q,
    num_tiles,
    num_chunks,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    CAUSAL: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dq of BLOCK queries, one block of its columns a program, and ``-δ / t`` of these queries."""
    NUM_BLOCKS: tl.constexpr = (HEAD_DIM + BLOCK_D - 1) // BLOCK_D
    DOT: tl.constexpr = tl.float32 if WIDE else k_ptr.dtype.element_ty
    program = tl.program_id(0)
    column_block = program % NUM_BLOCKS
    tile = program // NUM_BLOCKS % num_tiles
    wide_head = program // NUM_BLOCKS // num_tiles
    head = wide_head % num_heads
    batch = wide_head // num_heads
    query_start = tl.load(bounds_ptr + 4 * batch)
    key_limit = tl.load(bounds_ptr + 4 * batch + 1)

    first = (query_start & -BLOCK) + tile * BLOCK
    q_pos = first + tl.arange(0, BLOCK)
    rows = q_pos - query_start
    exists = (rows >= 0) & (rows < seqlen_q)
    sees = exists & (q_pos >= 0)

    dims = (column_block * BLOCK_D + tl.arange(0, BLOCK_D)).to(tl.int64)
    value_dims = tl.arange(0, BLOCK_V).to(tl.int64)
    inside = dims < HEAD_DIM
    values_inside = value_dims < VALUE_DIM
    wide_batch = batch.to(tl.int64)
    wide_rows = rows.to(tl.int64)
    out_rows = wide_head.to(tl.int64) * seqlen_q + rows
    kv_head = (head // group_size).to(tl.int64)
    grad_base = grad_ptr + wide_batch * stride_gb + head.to(tl.int64) * stride_gh
    k_base = k_ptr + wide_batch * stride_kb + kv_head * stride_kh
    v_base = v_ptr + wide_batch * stride_vb + kv_head * stride_vh
    upstream = tl.load(
        grad_base + wide_rows[:, None] * stride_gs + value_dims[None, :] * stride_gd,
        mask=sees[:, None] & values_inside[None, :],
        other=0.0,
    )
    out = tl.load(
        out_ptr + out_rows[:, None] * VALUE_DIM + value_dims[None, :],
        mask=sees[:, None] & values_inside[None, :],
        other=0.0,
    )
    delta = tl.sum(upstream.to(tl.float32) * out.to(tl.float32), 1)
    total = tl.load(total_ptr + out_rows, mask=exists, other=1.0)
    if column_block == 0:
        tl.store(drop_ptr + out_rows, -delta / total, mask=exists)
    upstream = upstream.to(DOT)

    key_chunks = (key_limit + CHUNK - 1) // CHUNK
    chunk = key_chunks
    if CAUSAL:
        chunk = tl.minimum(tl.maximum(first, 0) // CHUNK, key_chunks)
    kv = wide_batch * (num_heads // group_size) + kv_head
    state_base = states_ptr + (kv * num_chunks + chunk - 1) * (HEAD_DIM * VALUE_DIM + HEAD_DIM)
    summed = dims < tl.where(chunk > 0, HEAD_DIM, 0)
    normaliser = tl.load(state_base + HEAD_DIM * VALUE_DIM + dims, mask=summed, other=0.0)
    acc = product_with_state(
        upstream,
        state_base + dims[None, :] * VALUE_DIM + value_dims[:, None],
        summed[None, :] & values_inside[:, None],
        tl.full([BLOCK, BLOCK_D], 0.0, dtype=tl.float32),
        DOT,
        PRECISION,
    )
    acc -= delta[:, None] * normaliser[None, :]
    if CAUSAL:
        for start in range(chunk * CHUNK, tl.minimum(first + BLOCK, key_limit), BLOCK):
            k_pos = start + tl.arange(0, BLOCK)
            seen = k_pos < key_limit
            wide_pos = k_pos.to(tl.int64)
            v = tl.load(
                v_base + wide_pos[None, :] * stride_vs + value_dims[:, None] * stride_vd,
                mask=seen[None, :] & values_inside[:, None],
                other=0.0,
            )
            k = tl.load(
                k_base + wide_pos[:, None] * stride_ks + dims[None, :] * stride_kd,
                mask=seen[:, None] & inside[None, :],
                other=0.0,
            )
            weights = tl.dot(upstream, v.to(DOT), input_precision=PRECISION) - delta[:, None]
            weights = tl.where((k_pos[None, :] <= q_pos[:, None]) & seen[None, :], weights, 0.0)
            weights = operand(weights, DOT, PRECISION)
            b = operand(feature(k), DOT, PRECISION)
            acc = tl.dot(weights, b, acc, input_precision=PRECISION)

    q = tl.load(
        q_ptr
        + wide_batch * stride_qb
        + head.to(tl.int64) * stride_qh
        + wide_rows[:, None] * stride_qs
        + dims[None, :] * stride_qd,
        mask=sees[:, None] & inside[None, :],
        other=0.0,
    )
    tl.store(
        dq_ptr + out_rows[:, None] * HEAD_DIM + dims[None, :],
        (acc / total[:, None] * slope(q)).to(dq_ptr.dtype.element_ty),
        mask=exists[:, None] & inside[None, :],
    )


@triton.jit
def linear_query_states_kernel(
    q_ptr,
    grad_ptr,
    total_ptr,
    drop_ptr,
    states_ptr,
    bounds_ptr,
    stride_qb,
    stride_qh,
    stride_qs,
    stride_qd,
    stride_gb,
    stride_gh,
    stride_gs,
    stride_gd,
    num_kv_heads,
    group_size,
    seqlen_q,
    num_chunks,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``Σ (a_i / t_i)ᵀ [do_i, -δ_i]`` over the queries of one chunk and the heads of a group, one block of
    value columns a program; chunks count from that of the first query that sees a key.
    """
    NUM_BLOCKS: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if WIDE else q_ptr.dtype.element_ty
    program = tl.program_id(0)
    value_block = program % NUM_BLOCKS
    chunk = program // NUM_BLOCKS % num_chunks
    kv = program // NUM_BLOCKS // num_chunks
    batch = kv // num_kv_heads
    if chunk >= tl.load(bounds_ptr + 4 * batch + 3):
        return
    query_start = tl.load(bounds_ptr + 4 * batch)
    first_pos = tl.maximum(query_start, 0)
    first = (first_pos // CHUNK + chunk) * CHUNK
    begin = tl.maximum(first, first_pos & -BLOCK)
    end = tl.minimum(first + CHUNK, query_start + seqlen_q)
    num_steps = (end - begin + BLOCK - 1) // BLOCK

    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    value_dims = (value_block * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    inside = dims < HEAD_DIM
    first_head = kv % num_kv_heads * group_size
    q_base = q_ptr + batch.to(tl.int64) * stride_qb
    grad_base = grad_ptr + batch.to(tl.int64) * stride_gb
    state = tl.full([BLOCK_D, BLOCK_V], 0.0, dtype=tl.float32)
    normaliser = tl.full([BLOCK_D], 0.0, dtype=tl.float32)
    for step in range(tl.maximum(group_size * num_steps, 1)):  # never skipped, as in the forward kernel
        head = (first_head + step // num_steps).to(tl.int64)
        q_pos = begin + step % num_steps * BLOCK + tl.arange(0, BLOCK)
        sees = (q_pos >= first_pos) & (q_pos < end)
        rows = (q_pos - query_start).to(tl.int64)
        out_rows = (kv.to(tl.int64) * group_size + step // num_steps) * seqlen_q + rows
        q = tl.load(
            q_base + head * stride_qh + rows[None, :] * stride_qs + dims[:, None] * stride_qd,
            mask=sees[None, :] & inside[:, None],
            other=0.0,
        )
        upstream = tl.load(
            grad_base + head * stride_gh + rows[:, None] * stride_gs + value_dims[None, :] * stride_gd,
            mask=sees[:, None] & (value_dims[None, :] < VALUE_DIM),
            other=0.0,
        )
        total = tl.load(total_ptr + out_rows, mask=sees, other=1.0)
        drop = tl.load(drop_ptr + out_rows, mask=sees, other=0.0)
        a = feature(q)
        scaled = operand(a / total[None, :], DOT, PRECISION)
        # Of the same rounded factor as the state: the two cancel.
        normaliser += tl.sum(scaled.to(tl.float32) * (drop * total)[None, :], 1)
        state = tl.dot(scaled, upstream.to(DOT), state, input_precision=PRECISION)

    base = states_ptr + (kv.to(tl.int64) * num_chunks + chunk) * (HEAD_DIM * VALUE_DIM + HEAD_DIM)
    tl.store(
        base + dims[:, None] * VALUE_DIM + value_dims[None, :],
        state,
        mask=inside[:, None] & (value_dims[None, :] < VALUE_DIM),
    )
    if value_block == 0:
        tl.store(base + HEAD_DIM * VALUE_DIM + dims, normaliser, mask=inside)
