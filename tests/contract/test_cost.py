"""FLOPs and compulsory bytes against brute-force enumeration of visible pairs."""

import itertools
from typing import Any

import pytest

from attnbench.contract.cost import Cost, compulsory_bytes, compulsory_read_bytes, dense_flops, useful_flops
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem

MASKS: list[Mask] = [
    Full(),
    Causal(),
    SlidingWindow(1),
    SlidingWindow(4),
    SlidingWindow(99),
    SlidingWindow(3, causal=False),
]
SHAPES: list[dict[str, Any]] = [
    {"seqlen_q": 7},
    {"seqlen_q": 3, "seqlen_k": 9},
    {"seqlen_q": 9, "seqlen_k": 3},
    {"seqlen_q": 2, "seqlen_k": 16, "query_start": 6},
    {"seqlen_q": 6, "batch": 3, "key_lengths": (0, 2, 6)},
    {"seqlen_q": 5, "seqlen_k": 8, "batch": 2, "query_start": (0, -3)},
    {"seqlen_q": 6, "num_heads": 4, "num_kv_heads": 2, "head_dim_v": 5},
]


def seen_pairs(problem: Problem) -> set[tuple[int, int, int, int]]:
    """Every visible (batch row, head, query, key), one by one from the predicate."""
    p = problem
    return {
        (b, h, i, j)
        for b, h, i, j in itertools.product(
            range(p.batch), range(p.num_heads), range(p.seqlen_q), range(p.seqlen_k)
        )
        if j < p.key_limits[b] and bool(p.mask.visible(b, h, p.query_starts[b] + i, j))
    }


@pytest.mark.parametrize("mask", [pytest.param(mask, id=mask.slug) for mask in MASKS])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flops_and_bytes_equal_enumeration(mask: Mask, shape: dict[str, Any]) -> None:
    problem = Problem(**{"num_heads": 2, "head_dim": 3, "mask": mask, "dtype": "float16", **shape})
    p = problem
    pairs = seen_pairs(p)
    assert useful_flops(p) == 2 * len(pairs) * (p.head_dim + p.head_dim_v)
    assert useful_flops(p.replace(mode="bwd")) == 2 * useful_flops(p)
    assert useful_flops(p.replace(mode="fwd_bwd")) == 3 * useful_flops(p)
    rows = {(b, h, i) for b, h, i, _ in pairs}
    slots = {(b, h // p.group_size, j) for b, h, _, j in pairs}
    out = p.batch * p.num_heads * p.seqlen_q * p.head_dim_v
    read = len(rows) * p.head_dim + len(slots) * (p.head_dim + p.head_dim_v)
    assert compulsory_bytes(p) == 2 * (read + out)
    assert compulsory_read_bytes(p) == 2 * read
    for mode in ("bwd", "fwd_bwd"):
        assert compulsory_read_bytes(p.replace(mode=mode)) == 2 * (read + len(rows) * p.head_dim_v)
    inputs = p.batch * p.num_heads * p.seqlen_q * p.head_dim + p.batch * p.num_kv_heads * p.seqlen_k * (
        p.head_dim + p.head_dim_v
    )
    assert compulsory_bytes(p.replace(mode="fwd_bwd")) == 2 * (read + out + len(rows) * p.head_dim_v + inputs)


def test_dense_flops_are_the_published_convention() -> None:
    problem = Problem(batch=1, num_heads=12, seqlen_q=64, head_dim=64)
    assert dense_flops(problem) == 4 * 12 * 64 * 64 * 64 == 12_582_912
    assert dense_flops(problem.replace(mask=Full())) == useful_flops(problem.replace(mask=Full()))


def test_a_leading_term_is_algebra() -> None:
    cost = Cost(flops=1, compulsory_bytes=1, leading={"flops": "2*B*H*n*m*(d+e)"})
    term = cost.leading_term("flops")
    values = {"B": 1, "H": 2, "n": 3, "m": 4, "d": 5, "e": 6}
    assert term.subs({symbol: values[symbol.name] for symbol in term.free_symbols}) == 2 * 2 * 12 * 11
    with pytest.raises(KeyError):
        cost.leading_term("peak_bytes")
    assert cost.theory() == {"flops": 1, "compulsory_bytes": 1}
