"""Which tiles the FlashAttention kernels visit: what a tile of one side reads of the other, as intervals.

All positions are int32 scalars of a program; ``left`` and ``right`` say how far behind and ahead of a query
the keys lie that it sees, where ``HAS_LEFT`` and ``HAS_RIGHT``.
"""

# Triton reads the annotations of a kernel, so its arguments cannot have ours.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl


@triton.jit
def key_range(
    tile,
    query_start,
    key_limit,
    seqlen_q,
    left,
    right,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
):
    """Return ``lo, hi, begin, full_begin, full_end, end`` of a query tile.

    Some query sees a key in ``lo … hi-1``; key tiles start at ``begin … end-1``, and in those between
    ``full_begin`` and ``full_end`` every query sees every key.
    """
    first_pos = query_start + tile * BLOCK_Q
    last_pos = query_start + tl.minimum(tile * BLOCK_Q + BLOCK_Q, seqlen_q) - 1
    lo = 0
    full_lo = 0
    hi = key_limit
    full_hi = key_limit
    if HAS_LEFT:
        lo = tl.maximum(first_pos - left, 0)
        full_lo = tl.maximum(last_pos - left, 0)
    if HAS_RIGHT:
        hi = tl.minimum(last_pos + right + 1, key_limit)
        full_hi = tl.minimum(first_pos + right + 1, key_limit)
    begin = lo // BLOCK_K * BLOCK_K
    end = tl.where(hi > lo, (hi + BLOCK_K - 1) // BLOCK_K * BLOCK_K, begin)
    full_begin = tl.minimum((full_lo + BLOCK_K - 1) // BLOCK_K * BLOCK_K, end)
    full_end = tl.maximum(full_hi // BLOCK_K * BLOCK_K, full_begin)
    return lo, hi, begin, full_begin, full_end, end


@triton.jit
def query_range(
    tile,
    query_start,
    key_limit,
    seqlen_q,
    left,
    right,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
):
    """Return ``first_key, last_key, lo, hi, begin, full_begin, full_end, end`` of a key tile.

    Some query sees a key in ``first_key … last_key-1``, and queries ``lo … hi-1`` see one of them; blocks of
    queries are numbered ``begin … end-1``, and in those from ``full_begin`` to before ``full_end`` every
    query sees every key of the tile.
    """
    first_key = tile * BLOCK_K
    last_key = tl.minimum(first_key + BLOCK_K, key_limit)
    if HAS_LEFT:
        first_key = tl.maximum(first_key, query_start - left)
    if HAS_RIGHT:
        last_key = tl.minimum(last_key, query_start + seqlen_q + right)
    lo = 0
    full_lo = 0
    hi = seqlen_q
    full_hi = seqlen_q
    if HAS_RIGHT:
        lo = tl.maximum(first_key - right - query_start, 0)
        full_lo = tl.maximum(last_key - 1 - right - query_start, 0)
    if HAS_LEFT:
        hi = tl.minimum(last_key + left - query_start, seqlen_q)
        full_hi = tl.minimum(first_key + left + 1 - query_start, seqlen_q)
    begin = lo // BLOCK_Q
    end = tl.where((last_key > first_key) & (hi > lo), (hi + BLOCK_Q - 1) // BLOCK_Q, begin)
    full_begin = tl.minimum(tl.maximum((full_lo + BLOCK_Q - 1) // BLOCK_Q, begin), end)
    full_end = tl.minimum(tl.maximum(full_hi // BLOCK_Q, full_begin), end)
    if last_key - first_key < BLOCK_K:
        full_end = full_begin
    return first_key, last_key, lo, hi, begin, full_begin, full_end, end
