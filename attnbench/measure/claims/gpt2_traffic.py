"""Bytes of GPT-2's attention in training, plain and tiled. In: a shape. Out: bytes, forward and backward.

Plain is the chain of operators that trained GPT-2 before fused kernels: scaled product, causal mask added,
softmax, dropout, product; every operand of an operator counts once. Tiled is FlashAttention of 2022
(arXiv 2205.14135, algorithms 1 and 4): its loops are walked and what each step loads and stores is added up.
"""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.problem import DTYPE_BYTES
from attnbench.measure.operators import OperandBytes
from attnbench.plan.case import Case, Dtype

from .cases import counted

DROPOUT = 0.1
STATISTIC_BYTES = 4
"""Of a row: a sum or a maximum in float32."""


def gpt2_training_bytes(
    *,
    batch: int,
    num_heads: int,
    seqlen: int,
    head_dim: int,
    block_k: int,
    implementation: str,
    dtype: Dtype = "float16",
) -> dict[str, float]:
    """Return ``plain_bytes``, ``tiled_bytes``, their ``ratio``, and ``today_bytes``: operand bytes of an
    implementation of today, each kernel's operands once.

    ``block_k``: keys of a tile of the 2022 kernel.
    """
    heads = batch * num_heads
    plain = plain_training_bytes(heads, seqlen, head_dim, getattr(torch, dtype))
    tiled = heads * tiled_training_bytes(seqlen, head_dim, block_k, DTYPE_BYTES[dtype])
    case = Case(
        implementation=implementation,
        seqlen_q=seqlen,
        batch=batch,
        num_heads=num_heads,
        head_dim=head_dim,
        dtype=dtype,
        mode="fwd_bwd",
        mask={"name": "causal"},
    )
    today = counted(case).operand_bytes
    return {"plain_bytes": plain, "tiled_bytes": tiled, "ratio": plain / tiled, "today_bytes": today}


def plain_training_bytes(heads: int, seqlen: int, head_dim: int, dtype: torch.dtype) -> int:
    """Operand bytes of the chain, forward and backward."""
    with FakeTensorMode():
        q, k, v = (torch.empty(heads, seqlen, head_dim, dtype=dtype, requires_grad=True) for _ in range(3))
        hidden, upstream = torch.empty(seqlen, seqlen, dtype=dtype), torch.empty_like(v)
        operands = OperandBytes()
        with operands:
            out = plain_attention(q, k, v, hidden)
            torch.autograd.grad(out, (q, k, v), upstream)
    return operands.total_bytes


def plain_attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """``dropout(softmax(q kᵀ · scale + hidden)) v``; the scale is a factor of the product."""
    room = q.new_empty(q.shape[0], q.shape[1], k.shape[1])
    scores = torch.baddbmm(room, q, k.transpose(1, 2), beta=0, alpha=q.shape[2] ** -0.5)
    weights = (scores + hidden).softmax(dim=-1)
    kept, _ = torch.native_dropout(weights, DROPOUT, True)
    return kept @ v


def tiled_training_bytes(seqlen: int, head_dim: int, block_k: int, dtype_bytes: int) -> int:
    """What one head loads and stores with keys outside and queries inside, whatever the queries of a tile.

    A first pass over the queries finds no earlier out or dq to add to; in it the rows' ``do · out`` is made.
    """
    moved, rows, row = 0, seqlen * head_dim * dtype_bytes, seqlen * STATISTIC_BYTES
    for start in range(0, seqlen, block_k):
        first, keys = start == 0, min(block_k, seqlen - start) * head_dim * dtype_bytes
        moved += 2 * keys  # k and v
        moved += 2 * rows + 2 * row  # q in, out and both statistics back
        moved += 0 if first else rows + 2 * row
    for start in range(0, seqlen, block_k):
        first, keys = start == 0, min(block_k, seqlen - start) * head_dim * dtype_bytes
        moved += 4 * keys  # k and v in, dk and dv out
        moved += 3 * rows + 2 * row  # q and do in, dq out; lse in, do · out in or out
        moved += rows  # out the first time, dq later
    return moved
