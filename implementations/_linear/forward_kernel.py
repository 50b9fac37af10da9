"""Linear attention forward in Triton, parallel over chunks: sums of each, their running sums, the output.

With ``a = φ(q)`` and ``b = φ(k)``, φ = elu + 1, a query in chunk c of the sequence is

    ``y_i = a_i S_c + Σ_{j in c, j ≤ i} (a_i · b_j) v_j``    with the state ``S_c = Σ_{j before c} b_jᵀ v_j``

over the same with 1 in place of v. Three kernels: ``linear_states_kernel`` sums ``b_jᵀ [v_j, 1]`` within each
chunk, ``linear_scan_kernel`` makes them running sums in place, ``linear_output_kernel`` does the rest.

In: q, k, v ``[B, H or G, S, D]`` by pointer and strides, and ``bounds[B, 4]`` (int32: position of the first
query, keys that are seen, chunks of these keys, chunks of the queries). Positions are those of the keys; a
query sees the keys up to its own position, all keys if not CAUSAL, none if its position is negative. Out: out
``[B, H, Sq, Dv]`` and denominators ``[B, H, Sq]`` (float32), contiguous. States are float32
``[B, G, chunks, D·Dv + D]``: ``Σ bᵀ v``, then ``Σ b``.

Operands of products are as narrow as the inputs, or float32 if WIDE: for float32, and for float16, whose
range products leave; PRECISION "tf32" then holds every float16.
Sources: arXiv 2006.16236; in chunks, arXiv 2312.06635.
"""

# Triton reads the annotations of a kernel, so its arguments cannot have ours.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl


@triton.jit
def feature(x):
    """``φ(x) = elu(x) + 1`` in float32, exact where it is small."""
    wide = x.to(tl.float32)
    return tl.exp(tl.minimum(wide, 0.0)) + tl.maximum(wide, 0.0)


@triton.jit
def operand(x, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Round to what a product takes: the hardware cuts float32 off to TF32, which would bias every sum."""
    if PRECISION == "tf32":
        bits = x.to(tl.int32, bitcast=True)
        rounded = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        # In a NaN of all ones the addition carries over into the sign.
        x = tl.where(x == x, rounded, x)
    return x.to(DOT)


@triton.jit
def product_with_state(x, pointers, mask, acc, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Add ``x state`` to ``acc``, and then what rounding took from the state: its normaliser is not rounded,
    and gradients are differences of both. Loaded anew, the state holds no registers in between.
    """
    for part in range(1 if PRECISION == "ieee" else 2):
        state = tl.load(pointers, mask=mask, other=0.0)
        rounded = operand(state, DOT, PRECISION)
        if PRECISION != "ieee":
            rest = operand(state - rounded.to(tl.float32), DOT, PRECISION)
            rounded = tl.where(part == 0, rounded, rest)
        acc = tl.dot(x, rounded, acc, input_precision=PRECISION)
    return acc


@triton.jit
def linear_states_kernel(
    k_ptr,
    v_ptr,
    states_ptr,
    bounds_ptr,
    stride_kb,
    stride_kh,
    stride_ks,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_vd,
    num_kv_heads,
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
    """``Σ b_jᵀ [v_j, 1]`` over the keys of one chunk, one block of value columns a program."""
    NUM_BLOCKS: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if WIDE else k_ptr.dtype.element_ty
    program = tl.program_id(0)
    value_block = program % NUM_BLOCKS
    chunk = program // NUM_BLOCKS % num_chunks
    head = program // NUM_BLOCKS // num_chunks
    batch = head // num_kv_heads
    key_limit = tl.load(bounds_ptr + 4 * batch + 1)
    first = chunk * CHUNK
    if first >= key_limit:
        return

    # What multiplies a stride is 64 bits wide: index × stride passes 2**31 long before memory ends.
    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    value_dims = (value_block * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    kv_head = (head % num_kv_heads).to(tl.int64)
    k_base = k_ptr + batch.to(tl.int64) * stride_kb + kv_head * stride_kh
    v_base = v_ptr + batch.to(tl.int64) * stride_vb + kv_head * stride_vh

    state = tl.full([BLOCK_D, BLOCK_V], 0.0, dtype=tl.float32)
    normaliser = tl.full([BLOCK_D], 0.0, dtype=tl.float32)
    # At least one step: a loop that the compiler believes may be skipped serializes Hopper's products.
    num_steps = tl.maximum((tl.minimum(CHUNK, key_limit - first) + BLOCK - 1) // BLOCK, 1)
    for step in range(num_steps):
        k_pos = first + step * BLOCK + tl.arange(0, BLOCK)
        seen = k_pos < key_limit
        wide_pos = k_pos.to(tl.int64)
        k = tl.load(
            k_base + wide_pos[None, :] * stride_ks + dims[:, None] * stride_kd,
            mask=seen[None, :] & (dims[:, None] < HEAD_DIM),
            other=0.0,
        )
        v = tl.load(
            v_base + wide_pos[:, None] * stride_vs + value_dims[None, :] * stride_vd,
            mask=seen[:, None] & (value_dims[None, :] < VALUE_DIM),
            other=0.0,
        )
        b = operand(tl.where(seen[None, :], feature(k), 0.0), DOT, PRECISION)
        normaliser += tl.sum(b.to(tl.float32), 1)
        state = tl.dot(b, v.to(DOT), state, input_precision=PRECISION)

    base = states_ptr + (head.to(tl.int64) * num_chunks + chunk) * (HEAD_DIM * VALUE_DIM + HEAD_DIM)
    tl.store(
        base + dims[:, None] * VALUE_DIM + value_dims[None, :],
        state,
        mask=(dims[:, None] < HEAD_DIM) & (value_dims[None, :] < VALUE_DIM),
    )
    if value_block == 0:
        tl.store(base + HEAD_DIM * VALUE_DIM + dims, normaliser, mask=dims < HEAD_DIM)


@triton.jit
def linear_scan_kernel(
    states_ptr,
    bounds_ptr,
    num_kv_heads,
    num_chunks,
    STATE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    KEEP_ALL: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """Running sums over chunks of keys in place, each with its own; if REVERSE over chunks of queries, from
    the last one on. ROWS chunks a step. Unless KEEP_ALL, the total alone, at the chunk where the sum ends.
    """
    NUM_BLOCKS: tl.constexpr = (STATE_SIZE + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    head = program // NUM_BLOCKS
    count = tl.load(bounds_ptr + 4 * (head // num_kv_heads) + 2 + REVERSE)
    columns = (program % NUM_BLOCKS * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    base = states_ptr + head.to(tl.int64) * num_chunks * STATE_SIZE
    total = tl.full([BLOCK], 0.0, dtype=tl.float32)
    for start in range(0, count, ROWS):
        order = start + tl.arange(0, ROWS)
        chunks = order
        if REVERSE:
            chunks = count - 1 - order
        pointers = base + chunks.to(tl.int64)[:, None] * STATE_SIZE + columns[None, :]
        exists = (order < count)[:, None] & (columns < STATE_SIZE)[None, :]
        sums = tl.load(pointers, mask=exists, other=0.0)
        if KEEP_ALL:
            tl.store(pointers, total[None, :] + tl.cumsum(sums, 0), mask=exists)
        total += tl.sum(sums, 0)
    if not KEEP_ALL:
        last = tl.maximum(count - 1, 0)
        if REVERSE:
            last = 0
        tl.store(
            base + tl.cast(last, tl.int64) * STATE_SIZE + columns,
            total,
            mask=columns < tl.where(count > 0, STATE_SIZE, 0),
        )


@triton.jit
def linear_output_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    states_ptr,
    out_ptr,
    total_ptr,
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
    """Output of BLOCK queries, one block of value columns a program; tiles start at multiples of BLOCK.

    A denominator of 0 (no key, or features that all underflow) is stored as 1.
    """
    NUM_BLOCKS: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if WIDE else k_ptr.dtype.element_ty
    program = tl.program_id(0)
    value_block = program % NUM_BLOCKS
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

    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    value_dims = (value_block * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    wide_batch = batch.to(tl.int64)
    kv_head = (head // group_size).to(tl.int64)
    q_base = q_ptr + wide_batch * stride_qb + head.to(tl.int64) * stride_qh
    k_base = k_ptr + wide_batch * stride_kb + kv_head * stride_kh
    v_base = v_ptr + wide_batch * stride_vb + kv_head * stride_vh
    q = tl.load(
        q_base + rows.to(tl.int64)[:, None] * stride_qs + dims[None, :] * stride_qd,
        mask=sees[:, None] & (dims[None, :] < HEAD_DIM),
        other=0.0,
    )
    a = tl.where(sees[:, None] & (dims[None, :] < HEAD_DIM), feature(q), 0.0)
    a = operand(a, DOT, PRECISION)

    # The chunks before this one are in the running sum of the last of them; queries after all keys have no
    # chunk of keys of their own.
    key_chunks = (key_limit + CHUNK - 1) // CHUNK
    chunk = key_chunks
    if CAUSAL:
        chunk = tl.minimum(tl.maximum(first, 0) // CHUNK, key_chunks)
    kv = wide_batch * (num_heads // group_size) + kv_head
    state_base = states_ptr + (kv * num_chunks + chunk - 1) * (HEAD_DIM * VALUE_DIM + HEAD_DIM)
    inside = dims < HEAD_DIM
    summed = dims < tl.where(chunk > 0, HEAD_DIM, 0)
    normaliser = tl.load(state_base + HEAD_DIM * VALUE_DIM + dims, mask=summed, other=0.0)
    total = tl.sum(a.to(tl.float32) * normaliser[None, :], 1)
    acc = product_with_state(
        a,
        state_base + dims[:, None] * VALUE_DIM + value_dims[None, :],
        summed[:, None] & (value_dims[None, :] < VALUE_DIM),
        tl.full([BLOCK, BLOCK_V], 0.0, dtype=tl.float32),
        DOT,
        PRECISION,
    )
    if CAUSAL:
        for start in range(chunk * CHUNK, tl.minimum(first + BLOCK, key_limit), BLOCK):
            k_pos = start + tl.arange(0, BLOCK)
            # Keys that no query of this tile sees are not read: a weight of zero does not stop a NaN.
            seen = k_pos < key_limit
            wide_pos = k_pos.to(tl.int64)
            k = tl.load(
                k_base + wide_pos[None, :] * stride_ks + dims[:, None] * stride_kd,
                mask=seen[None, :] & inside[:, None],
                other=0.0,
            )
            v = tl.load(
                v_base + wide_pos[:, None] * stride_vs + value_dims[None, :] * stride_vd,
                mask=seen[:, None] & (value_dims[None, :] < VALUE_DIM),
                other=0.0,
            )
            b = operand(feature(k), DOT, PRECISION)
            weights = tl.dot(a, b, input_precision=PRECISION)
            weights = tl.where((k_pos[None, :] <= q_pos[:, None]) & seen[None, :], weights, 0.0)
            weights = operand(weights, DOT, PRECISION)
            total += tl.sum(weights.to(tl.float32), 1)
            acc = tl.dot(weights, v.to(DOT), acc, input_precision=PRECISION)

    divisor = tl.where(total == 0.0, 1.0, total)
    out_rows = wide_head.to(tl.int64) * seqlen_q + rows
    if value_block == 0:
        tl.store(total_ptr + out_rows, divisor, mask=exists)
    tl.store(
        out_ptr + out_rows[:, None] * VALUE_DIM + value_dims[None, :],
        (acc / divisor[:, None]).to(out_ptr.dtype.element_ty),
        mask=exists[:, None] & (value_dims[None, :] < VALUE_DIM),
    )
