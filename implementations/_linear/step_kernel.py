"""A step of decoding with linear attention in Triton: the state is read and written once, in place.

``sums`` ``[B, G, D, Dv + 1]`` (float32, contiguous) hold ``Σ b_jᵀ [v_j, 1]`` of all tokens so far. Token by
token the key goes in, then the queries of the group look: ``y = a Σ bᵀ v / a Σ b``. One program a (batch row,
key/value head): a state is small, and its normaliser must not be read after another program wrote it.
"""

# Triton reads the annotations of a kernel, so its arguments cannot have ours.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from .forward_kernel import feature


@triton.jit
def linear_step_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    sums_ptr,
    out_ptr,
    added_ptr,
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
    num_tokens,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Attend with ``num_tokens`` new tokens and add the first ``added[b]`` of them to the sums."""
    NUM_BLOCKS: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    kv = tl.program_id(0)
    batch = kv // num_kv_heads
    added = tl.load(added_ptr + batch)
    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    inside = dims < HEAD_DIM
    wide_batch = batch.to(tl.int64)
    kv_head = (kv % num_kv_heads).to(tl.int64)
    k_base = k_ptr + wide_batch * stride_kb + kv_head * stride_kh
    v_base = v_ptr + wide_batch * stride_vb + kv_head * stride_vh
    rows = sums_ptr + kv.to(tl.int64) * (HEAD_DIM * (VALUE_DIM + 1)) + dims * (VALUE_DIM + 1)
    before = tl.load(rows + VALUE_DIM, mask=inside, other=0.0)
    normaliser = before
    for block in tl.static_range(NUM_BLOCKS):
        value_dims = (block * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
        values_inside = value_dims < VALUE_DIM
        pointers = rows[:, None] + value_dims[None, :]
        here = inside[:, None] & values_inside[None, :]
        state = tl.load(pointers, mask=here, other=0.0)
        normaliser = before
        for token in range(num_tokens):
            wide_token = tl.cast(token, tl.int64)
            valid = tl.where(token < added, HEAD_DIM, 0)
            k = tl.load(k_base + wide_token * stride_ks + dims * stride_kd, mask=dims < valid, other=0.0)
            v = tl.load(
                v_base + wide_token * stride_vs + value_dims * stride_vd,
                mask=value_dims < tl.where(token < added, VALUE_DIM, 0),
                other=0.0,
            )
            b = tl.where(dims < valid, feature(k), 0.0)
            state += b[:, None] * v.to(tl.float32)[None, :]
            normaliser += b
            for member in range(group_size):
                head = kv_head * group_size + member
                q = tl.load(
                    q_ptr
                    + wide_batch * stride_qb
                    + head * stride_qh
                    + wide_token * stride_qs
                    + dims * stride_qd,
                    mask=inside,
                    other=0.0,
                )
                a = tl.where(inside, feature(q), 0.0)
                total = tl.sum(a * normaliser, 0)
                # No key, or features that all underflow: 0 / 1. A NaN stays one.
                y = tl.sum(a[:, None] * state, 0) / tl.where(total == 0.0, 1.0, total)
                out_row = (wide_batch * num_kv_heads * group_size + head) * num_tokens + wide_token
                tl.store(
                    out_ptr + out_row * VALUE_DIM + value_dims,
                    y.to(out_ptr.dtype.element_ty),
                    mask=values_inside,
                )
        tl.store(pointers, state, mask=here)
    tl.store(rows + VALUE_DIM, normaliser, mask=inside)
