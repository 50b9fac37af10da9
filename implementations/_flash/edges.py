"""The edges of masks, sequences and heads in the FlashAttention kernels: what is hidden, what is not read."""

# Triton reads the annotations of a kernel, so its arguments cannot have ours.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl


@triton.jit
def keys_seen(q_pos, lo, hi, left, right, BLOCK_Q: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Return the first and the last key that each query ``q_pos [BLOCK_Q]`` sees of keys ``lo … hi-1``."""
    first_key = tl.maximum(q_pos - left, lo)
    last_key = tl.full([BLOCK_Q], 0, dtype=tl.int32) + hi - 1
    if HAS_RIGHT:
        last_key = tl.minimum(q_pos + right, last_key)
    return first_key, last_key


@triton.jit
def hide(scores, k_pos, first_key, last_key, HAS_LEFT: tl.constexpr):
    """Return ``scores [BLOCK_Q, BLOCK_K]`` with -inf wherever a query does not see the key ``k_pos``."""
    visible = k_pos[None, :] <= last_key[:, None]
    if HAS_LEFT:
        visible = visible & (k_pos[None, :] >= first_key[:, None])
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def load_rows(pointers, wanted, dims, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EDGE: tl.constexpr):
    """Load a tile ``[rows, BLOCK]``: 0 beyond ``WIDTH`` and, at an ``EDGE``, in rows that are not ``wanted``.

    Rows that nobody sees are not read: a weight of zero does not stop a NaN.
    """
    if EDGE:
        tile = tl.load(pointers, mask=wanted[:, None] & (dims[None, :] < WIDTH), other=0.0)
    elif WIDTH != BLOCK:
        tile = tl.load(pointers, mask=dims[None, :] < WIDTH, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile
