"""What the tiled kernel costs: tiles that are visited and no others, bytes of a large grid, leading terms."""

import pytest
import torch
from triton.runtime.interpreter import interpreter_builder

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.measure.interpreter import trace_kernels
from tests.implementations.conformance import graded

FLASH = get_implementation("triton-flash")

TILED = [
    Problem(seqlen_q=100, num_heads=1, head_dim=16, mask=Full()),
    Problem(seqlen_q=100, num_heads=1, head_dim=16, mask=Causal()),
    Problem(seqlen_q=100, num_heads=1, head_dim=16, mask=SlidingWindow(20)),
    Problem(seqlen_q=100, num_heads=1, head_dim=16, mask=SlidingWindow(1)),
    Problem(seqlen_q=100, num_heads=1, head_dim=16, mask=SlidingWindow(33, causal=False)),
    Problem(seqlen_q=40, seqlen_k=100, num_heads=1, head_dim=16, mask=SlidingWindow(20)),
    Problem(seqlen_q=100, seqlen_k=40, num_heads=1, head_dim=16, mask=Causal()),
    Problem(
        seqlen_q=70,
        batch=2,
        num_heads=1,
        head_dim=16,
        mask=Causal(),
        key_lengths=(0, 37),
        query_start=(-9, 5),
    ),
]


@pytest.mark.parametrize(
    ("mode", "dtype", "products_of_a_tile"),
    [
        ("fwd", "float32", 2),
        ("fwd_bwd", "float16", 2 + 3 + 4),
        pytest.param("fwd_bwd", "float32", 2 + 4 + 4, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("blocks", [(16, 32), (32, 16)])
@pytest.mark.parametrize("problem", TILED)
def test_only_tiles_with_a_visible_pair_are_visited(
    problem, blocks, mode, dtype, products_of_a_tile, monkeypatch
):
    problem = problem.replace(mode=mode, dtype=dtype, options={"block_q": blocks[0], "block_k": blocks[1]})
    products = []
    matmul = interpreter_builder.create_dot

    def counted(*arguments):
        products.append(matmul(*arguments))
        return products[-1]

    monkeypatch.setattr(interpreter_builder, "create_dot", counted)
    assert graded("triton-flash", problem).verdict == "ok"
    assert len(products) == products_of_a_tile * problem.visited_tiles(*blocks)
    assert FLASH.cost(problem).executed_flops == len(products) * 2 * blocks[0] * blocks[1] * 16


def test_more_programs_than_a_second_grid_axis_holds():
    problem = Problem(seqlen_q=1, batch=257, num_heads=256, head_dim=16, mask=Full())
    assert FLASH.kernels[0].sample_programs is not None
    sample = FLASH.kernels[0].sample_programs(problem)
    q, k, v = torch.randn(3, 257, 256, 1, 16).unbind(0)
    with trace_kernels({"flash_forward_kernel": sample}) as trace:
        out = FLASH.attention(q, k, v, problem=problem).out
    assert trace.launches[0].grid == (257 * 256, 1, 1)
    assert trace.requested_bytes == FLASH.cost(problem).requested_bytes
    assert torch.equal(out[0, 0], v[0, 0])
    assert torch.isnan(out[1:]).all(), "rows that no program computed must not look like results"


@pytest.mark.parametrize("mask", [Full(), Causal(), SlidingWindow(4096), SlidingWindow(4096, causal=False)])
@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_leading_terms_lead(mask, mode):
    """At 128k tokens what people write differs from the exact count by edges alone."""
    problem = Problem(seqlen_q=1 << 17, num_heads=8, num_kv_heads=2, dtype="float16", mask=mask, mode=mode)
    cost = FLASH.cost(problem)
    letters = {"B": 1, "H": 8, "G": 2, "n": 1 << 17, "m": 1 << 17, "d": 64, "e": 64, "W": 4096}
    for quantity, exact in cost.theory().items():
        if quantity in cost.leading:
            term = cost.leading_term(quantity)
            value = float(term.subs({symbol: letters[symbol.name] for symbol in term.free_symbols}))
            assert value == pytest.approx(exact, rel=0.1), quantity
