"""The gradients of keys and values under linear attention in Triton.

Formulas and layouts are in `backward_kernel.py`.
"""

# Triton reads the annotations of a kernel, so its arguments cannot have ours.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from .backward_kernel import slope
from .forward_kernel import feature, operand, product_with_state


@triton.jit
def linear_keys_gradient_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_ptr,
    total_ptr,
    drop_ptr,
    states_ptr,
    result_ptr,
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
    num_kv_heads,
    group_size,
    seqlen_q,
    seqlen_k,
    num_tiles,
    num_chunks,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    CAUSAL: tl.constexpr,
    OF_KEYS: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dk (OF_KEYS) or dv of BLOCK keys, one block of its columns a program.

    Both are ``x R + Σ (x_j · y_i) z_i`` with (x, y, z) = (v, do, a) for dk and (b, a, do) for dv.
    """
    INNER: tl.constexpr = VALUE_DIM if OF_KEYS else HEAD_DIM
    OUTER: tl.constexpr = HEAD_DIM if OF_KEYS else VALUE_DIM
    BLOCK_INNER: tl.constexpr = BLOCK_V if OF_KEYS else BLOCK_D
    BLOCK_OUTER: tl.constexpr = BLOCK_D if OF_KEYS else BLOCK_V
    STATE_INNER: tl.constexpr = 1 if OF_KEYS else VALUE_DIM
    STATE_OUTER: tl.constexpr = VALUE_DIM if OF_KEYS else 1
    NUM_BLOCKS: tl.constexpr = (OUTER + BLOCK_OUTER - 1) // BLOCK_OUTER
    DOT: tl.constexpr = tl.float32 if WIDE else k_ptr.dtype.element_ty
    program = tl.program_id(0)
    column_block = program % NUM_BLOCKS
    tile = program // NUM_BLOCKS % num_tiles
    kv = program // NUM_BLOCKS // num_tiles
    batch = kv // num_kv_heads
    query_start = tl.load(bounds_ptr + 4 * batch)
    key_limit = tl.load(bounds_ptr + 4 * batch + 1)
    query_chunks = tl.load(bounds_ptr + 4 * batch + 3)

    first = tile * BLOCK
    k_pos = first + tl.arange(0, BLOCK)
    seen = k_pos < key_limit
    wide_pos = k_pos.to(tl.int64)
    inner = tl.arange(0, BLOCK_INNER).to(tl.int64)
    outer = (column_block * BLOCK_OUTER + tl.arange(0, BLOCK_OUTER)).to(tl.int64)
    wide_batch = batch.to(tl.int64)
    kv_head = (kv % num_kv_heads).to(tl.int64)
    k_base = k_ptr + wide_batch * stride_kb + kv_head * stride_kh
    q_base = q_ptr + wide_batch * stride_qb
    grad_base = grad_ptr + wide_batch * stride_gb
    if OF_KEYS:
        x_pointers = v_ptr + wide_batch * stride_vb + kv_head * stride_vh
        x_pointers += wide_pos[:, None] * stride_vs + inner[None, :] * stride_vd
    else:
        x_pointers = k_base + wide_pos[:, None] * stride_ks + inner[None, :] * stride_kd
    x = tl.load(x_pointers, mask=seen[:, None] & (inner[None, :] < INNER), other=0.0)
    if not OF_KEYS:
        x = operand(tl.where(inner[None, :] < INNER, feature(x), 0.0), DOT, PRECISION)
    x = x.to(DOT)

    # Queries of later chunks are in the running sum of the first of them.
    first_pos = tl.maximum(query_start, 0)
    slot = 0
    if CAUSAL:
        slot = tl.maximum(first // CHUNK + 1 - first_pos // CHUNK, 0)
    summed = outer < tl.where((slot < query_chunks) & (first < key_limit), OUTER, 0)
    state_base = states_ptr + (kv.to(tl.int64) * num_chunks + slot) * (HEAD_DIM * VALUE_DIM + HEAD_DIM)
    acc = product_with_state(
        x,
        state_base + inner[:, None] * STATE_INNER + outer[None, :] * STATE_OUTER,
        (inner[:, None] < INNER) & summed[None, :],
        tl.full([BLOCK, BLOCK_OUTER], 0.0, dtype=tl.float32),
        DOT,
        PRECISION,
    )
    if OF_KEYS:
        normaliser = tl.load(state_base + HEAD_DIM * VALUE_DIM + outer, mask=summed, other=0.0)
        acc += normaliser[None, :]

    if CAUSAL:
        begin = tl.maximum(first, first_pos & -BLOCK)
        end = tl.minimum((first // CHUNK + 1) * CHUNK, query_start + seqlen_q)
        end = tl.where(first < key_limit, tl.maximum(end, begin), begin)
        num_steps = (end - begin + BLOCK - 1) // BLOCK
        # One flat loop over (head of the group, block of queries).
        for step in range(group_size * num_steps):
            head = (kv_head * group_size + step // num_steps).to(tl.int64)
            q_pos = begin + step % num_steps * BLOCK + tl.arange(0, BLOCK)
            sees = (q_pos >= first_pos) & (q_pos < end)
            rows = (q_pos - query_start).to(tl.int64)
            if OF_KEYS:
                y_base = grad_base + head * stride_gh
                y_pointers = y_base + rows[None, :] * stride_gs + inner[:, None] * stride_gd
                z_base = q_base + head * stride_qh
                z_pointers = z_base + rows[:, None] * stride_qs + outer[None, :] * stride_qd
            else:
                y_base = q_base + head * stride_qh
                y_pointers = y_base + rows[None, :] * stride_qs + inner[:, None] * stride_qd
                z_base = grad_base + head * stride_gh
                z_pointers = z_base + rows[:, None] * stride_gs + outer[None, :] * stride_gd
            y = tl.load(y_pointers, mask=sees[None, :] & (inner[:, None] < INNER), other=0.0)
            z = tl.load(z_pointers, mask=sees[:, None] & (outer[None, :] < OUTER), other=0.0)
            out_rows = (wide_batch * num_kv_heads * group_size + head) * seqlen_q + rows
            total = tl.load(total_ptr + out_rows, mask=sees, other=1.0)
            y = y.to(DOT) if OF_KEYS else operand(feature(y), DOT, PRECISION)
            weights = tl.dot(x, y, input_precision=PRECISION) / total[None, :]
            if OF_KEYS:
                weights += tl.load(drop_ptr + out_rows, mask=sees, other=0.0)[None, :]
            weights = tl.where((k_pos[:, None] <= q_pos[None, :]) & sees[None, :], weights, 0.0)
            z = operand(feature(z), DOT, PRECISION) if OF_KEYS else z.to(DOT)
            acc = tl.dot(operand(weights, DOT, PRECISION), z, acc, input_precision=PRECISION)

    if OF_KEYS:
        k = tl.load(
            k_base + wide_pos[:, None] * stride_ks + outer[None, :] * stride_kd,
            mask=seen[:, None] & (outer[None, :] < OUTER),
            other=0.0,
        )
        acc *= slope(k)
    tl.store(
        result_ptr + (kv.to(tl.int64) * seqlen_k + wide_pos)[:, None] * OUTER + outer[None, :],
        tl.where(seen[:, None], acc, 0.0).to(result_ptr.dtype.element_ty),
        mask=(k_pos < seqlen_k)[:, None] & (outer[None, :] < OUTER),
    )
