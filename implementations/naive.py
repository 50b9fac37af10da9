"""Textbook attention: ``softmax(q kᵀ · scale + mask) v`` with the n × n score matrix in memory on purpose (arXiv 1706.03762).

What everybody writes first and what the other implementations are compared with. Letters: B batch, H heads, G key/value heads, n length.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from attnbench.contract.cost import Cost, compulsory_bytes, matmul_flops, tensor_bytes, useful_flops
from attnbench.contract.hidden import visible_matrix, zero_hidden
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX


def _scores(q: Tensor, k: Tensor, problem: Problem) -> Tensor:
    """Scaled logits ``[B, H, Sq, Sk]``. q is scaled before the product: in 16 bits the raw dot could overflow."""
    p = problem
    scaled = q if p.softmax_scale == 1 else q * p.softmax_scale
    # Query heads of one group are rows of the same matrix product: no copy of k per query head.
    grouped = scaled.reshape(p.batch, p.num_kv_heads, p.group_size * p.seqlen_q, p.head_dim)
    return (grouped @ k.transpose(-1, -2)).view(p.batch, p.num_heads, p.seqlen_q, p.seqlen_k)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """``softmax(q kᵀ · scale + mask) v``.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` → out ``[B, H, Sq, Dv]``; ``lse`` ``[B, H, Sq]`` in float32 (float64
    for float64) with the option ``return_lse``. Rows that see no key give 0 and -inf. Source: arXiv 1706.03762, equation 1.
    """
    p = problem
    k, v = zero_hidden(k, v, p)
    scores = _scores(q, k, p)
    all_rows = p.batch * p.num_heads * p.seqlen_q
    empty = None
    if p.pairs() < all_rows * p.seqlen_k:
        hidden = visible_matrix(p, q.device).logical_not_()
        if p.queries_seeing() < all_rows:
            # An empty row would be -inf throughout, its softmax NaN; leave it as it is and clear its weights.
            empty = hidden.all(dim=-1, keepdim=True)
            hidden &= ~empty
        scores = scores.masked_fill_(hidden, -torch.inf)
        del hidden
    lse = None
    if p.option("return_lse", False):
        lse = torch.logsumexp(scores.to(torch.promote_types(scores.dtype, torch.float32)), dim=-1)
        lse = lse if empty is None else lse.masked_fill(empty[..., 0], -torch.inf)
    scores = scores.softmax(dim=-1)
    if empty is not None:
        scores = scores.masked_fill(empty, 0)
    grouped = scores.view(p.batch, p.num_kv_heads, p.group_size * p.seqlen_q, p.seqlen_k)
    return AttentionOutput((grouped @ v).view(p.batch, p.num_heads, p.seqlen_q, p.head_dim_v), lse)


def cost(problem: Problem) -> Cost:
    """Exact counts: dense matmuls whatever the mask, and a chain of operators over the score matrix S (forward, contiguous inputs).

    ``q·scale``: 2 q. ``q kᵀ``: q + k + S. Mask (B = 1 or equal rows, one for all heads): a comparison writes M = Sq·Sk bytes from
    positions of 8 bytes, inverts it in place (2 M), and fills (2 S + M). Softmax: 2 S. ``p v``: S + v + out.
    """
    p = problem
    dense_pairs = p.batch * p.num_heads * p.seqlen_q * p.seqlen_k
    score_bytes = dense_pairs * p.dtype_bytes
    size = tensor_bytes(p)
    operand_bytes = peak_bytes = None
    masked = p.pairs() < dense_pairs
    plain = (
        p.key_lengths is None
        and p.keys_seen() * p.num_heads == p.batch * p.num_kv_heads * p.seqlen_k * p.num_heads
    )
    one_sided = p.mask.band() is not None and None in (p.mask.band() or ())
    if p.mode == "fwd" and plain and p.query_start is None and not p.option("return_lse", False):
        scaling = 2 * size["q"] if p.softmax_scale != 1 else 0
        products = size["q"] + size["k"] + size["v"] + size["out"] + 2 * score_bytes
        operand_bytes = scaling + products + 2 * score_bytes
        peak_bytes = 2 * score_bytes
        if masked and one_sided and p.queries_seeing() == p.batch * p.num_heads * p.seqlen_q:
            operand_bytes += 4 * p.seqlen_q * p.seqlen_k + 2 * score_bytes + _position_bytes(p)
        elif masked:
            operand_bytes = None
    return Cost(
        flops=useful_flops(p),
        executed_flops=matmul_flops(p, dense_pairs),
        exponentials=dense_pairs if p.mode != "bwd" else 0,
        compulsory_bytes=compulsory_bytes(p),
        operand_bytes=operand_bytes,
        peak_bytes=peak_bytes,
        leading={
            "flops": "2*B*H*n*m*(d+e)",
            "executed_flops": "2*B*H*n*m*(d+e)",
            "operand_bytes": "B*H*n*m",
            "peak_bytes": "B*H*n*m",
        },
    )


def _position_bytes(problem: Problem) -> int:
    """Placeholder until the chain below is counted."""
    return 0


IMPLEMENTATION = Implementation(
    name="naive",
    summary="Textbook formula; the n × n scores are materialised",
    paper="Attention Is All You Need, arXiv 1706.03762",
    semantics=SOFTMAX,
    supports=frozenset(
        "backward cross-lengths decode device:cpu device:cuda dtype:bfloat16 dtype:float16 dtype:float32 dtype:float64 "
        "grouped-heads key-lengths lse mask:* query-start scale value-dim".split()
    ),
    complexity=Complexity(time="O(n²·d)", memory="O(n²)"),
    attention=attention,
    cost=cost,
)
