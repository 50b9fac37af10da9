"""Textbook attention: ``softmax(q kᵀ · scale + mask) v`` with the n × n score matrix in memory on purpose
(arXiv 1706.03762).

What everybody writes first and what the other implementations are compared with. Letters: B batch, H heads, G
key/value heads, n length.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from attnbench.contract.cost import (
    Cost,
    compulsory_bytes,
    from_cache,
    matmul_flops,
    tensor_bytes,
    useful_flops,
)
from attnbench.contract.hidden import visible_matrix, zero_hidden
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX


def _by_key_head(x: Tensor, problem: Problem) -> Tensor:
    """``[B, H, Sq, X]`` to ``[B, G, H/G · Sq, X]``: query heads of a group become rows of one product.

    K and v are not copied.
    """
    p = problem
    return (
        x if p.group_size == 1 else x.reshape(p.batch, p.num_kv_heads, p.group_size * p.seqlen_q, x.shape[-1])
    )


def _by_query_head(x: Tensor, problem: Problem) -> Tensor:
    """The way back, to ``[B, H, Sq, X]``."""
    p = problem
    return x if p.group_size == 1 else x.view(p.batch, p.num_heads, p.seqlen_q, x.shape[-1])


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """``softmax(q kᵀ · scale + mask) v``.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` → out ``[B, H, Sq, Dv]``; with the option
    ``return_lse`` also ``lse`` ``[B, H, Sq]`` in float32 (float64 for float64). Rows that see no key give 0
    and -inf. Source: arXiv 1706.03762, equation 1.
    """
    p = problem
    k, v = zero_hidden(k, v, p)
    # q is scaled before the product: in 16 bits the raw dot could overflow.
    scaled = q if p.softmax_scale == 1 else q * p.softmax_scale
    scores = _by_query_head(_by_key_head(scaled, p) @ k.transpose(-1, -2), p)
    del scaled
    all_rows = p.batch * p.num_heads * p.seqlen_q
    empty = None
    if _hides_pairs(p):
        hidden = ~visible_matrix(p, q.device)  # torch.compile has no logical_not_ of booleans
        if p.queries_seeing() < all_rows:
            # An empty row would be -inf throughout, its softmax NaN; leave it as it is and clear its weights.
            empty = hidden.all(dim=-1, keepdim=True)
            hidden &= ~empty
        # In place where it is cheap: autograd would copy the whole of a view that is changed.
        is_view = p.group_size > 1
        scores = (
            scores.masked_fill(hidden, -torch.inf) if is_view else scores.masked_fill_(hidden, -torch.inf)
        )
        del hidden
    lse = None
    if p.option("return_lse", False):
        lse = torch.logsumexp(scores.to(torch.promote_types(scores.dtype, torch.float32)), dim=-1)
        lse = lse if empty is None else lse.masked_fill(empty[..., 0], -torch.inf)
    scores = scores.softmax(dim=-1)
    if empty is not None:
        scores = scores.masked_fill(empty, 0)
    return AttentionOutput(_by_query_head(_by_key_head(scores, p) @ v, p), lse)


def _hides_pairs(problem: Problem) -> bool:
    p = problem
    return p.pairs() < p.batch * p.num_heads * p.seqlen_q * p.seqlen_k


def _has_plain_chain(problem: Problem) -> bool:
    """Whether the forward pass is the chain that ``cost`` adds up.

    Plain positions, every row and key seen, a mask of one comparison.
    """
    p = problem
    return (
        p.key_lengths is None
        and p.query_start is None
        and not p.option("return_lse", False)
        and p.queries_seeing() == p.batch * p.num_heads * p.seqlen_q
        and p.keys_seen() == p.batch * p.num_kv_heads * p.seqlen_k
        and (not _hides_pairs(p) or (p.mask.band() or (0, 0)).count(None) >= 1)
    )


def _chain(problem: Problem) -> tuple[int, int]:
    """Operand bytes and peak of that chain, with S the scores, M = Sq · Sk the mask's bytes, positions of 8
    bytes.

    ``q · scale``: 2 q. ``q kᵀ``: q + k + S. Mask, one for all rows and heads: positions are made and shifted,
    one comparison writes M, inverted (2 M), filled in (2 S + M). Softmax: 2 S. ``p v``: S + v + out.
    At the peak S and its softmax are both alive, with grouped heads S before and after it is masked, with the
    mask; or in short rows S and the scaled q or out.
    """
    p, size = problem, tensor_bytes(problem)
    scores = p.batch * p.num_heads * p.seqlen_q * p.seqlen_k * p.dtype_bytes
    scaled = size["q"] if p.softmax_scale != 1 else 0
    moved = 2 * scaled + size["q"] + size["k"] + size["v"] + size["out"] + 4 * scores
    masked = 0
    if _hides_pairs(p):
        moved += 8 * (6 * p.seqlen_q + 2 * p.seqlen_k + 3) + 4 * p.seqlen_q * p.seqlen_k + 2 * scores
        masked = scores + p.seqlen_q * p.seqlen_k if p.group_size > 1 else 0
    return moved, scores + max(scores, scaled, size["out"], masked)


def _training_peak(problem: Problem) -> int:
    """Peak of that chain forward and backward.

    Where dp has been made, and ds from it, they are alive with p, the mask, the scaled q, out and dv; in
    short rows, where dk and the gradient of the scaled q have been, with ds and all that is no longer than q.
    """
    p, size = problem, tensor_bytes(problem)
    scores = p.batch * p.num_heads * p.seqlen_q * p.seqlen_k * p.dtype_bytes
    mask = p.seqlen_q * p.seqlen_k if _hides_pairs(p) else 0
    kept = (size["q"] if p.softmax_scale != 1 else 0) + size["out"] + size["v"]
    return kept + max(3 * scores + mask, scores + size["q"] + size["k"])


def _saved(problem: Problem) -> int:
    """What that chain keeps for its backward pass: the scaled q, k, v, the weights and the mask."""
    p, size = problem, tensor_bytes(problem)
    pairs = p.seqlen_q * p.seqlen_k
    weights = p.batch * p.num_heads * pairs * p.dtype_bytes
    return size["q"] + size["k"] + size["v"] + weights + (pairs if _hides_pairs(p) else 0)


@from_cache
def cost(problem: Problem) -> Cost:
    """Exact counts: dense products whatever the mask.

    Bytes of the plain chain: forward operand bytes and peak (``_chain``), forward and backward the peak.
    """
    p = problem
    dense_pairs = p.batch * p.num_heads * p.seqlen_q * p.seqlen_k
    operand_bytes = peak_bytes = None
    if _has_plain_chain(p):
        if p.mode == "fwd_bwd":
            peak_bytes = _training_peak(p)
        elif p.mode != "bwd":
            operand_bytes, peak_bytes = _chain(p)
    return Cost(
        flops=useful_flops(p),
        executed_flops=matmul_flops(p, dense_pairs),
        exponentials=dense_pairs if p.mode != "bwd" else 0,
        compulsory_bytes=compulsory_bytes(p),
        operand_bytes=operand_bytes,
        peak_bytes=peak_bytes,
        saved_bytes=_saved(p) if p.needs_gradients and _has_plain_chain(p) else None,
        leading={
            "flops": "2*B*H*n*m*(d+e)",
            "executed_flops": "2*B*H*n*m*(d+e)",
            "operand_bytes": "B*H*n*m",
            "peak_bytes": "B*H*n*m",
        },
    )


IMPLEMENTATION = Implementation(
    name="naive",
    summary="Textbook formula; the n × n scores are materialised",
    paper="Attention Is All You Need, arXiv 1706.03762",
    semantics=SOFTMAX,
    supports=frozenset(
        {
            *("device:cpu", "device:cuda", "mask:*"),
            *("dtype:bfloat16", "dtype:float16", "dtype:float32", "dtype:float64"),
            *("backward", "decode", "lse", "scale", "value-dim", "grouped-heads"),
            *("cross-lengths", "key-lengths", "query-start"),
        }
    ),
    complexity=Complexity(time="O(n²·d)", memory="O(n²)"),
    attention=attention,
    cost=cost,
)
