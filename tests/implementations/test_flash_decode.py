"""Flash decoding: values at every edge, keys read once a group, splits that do not matter, exact costs."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.implementations._flash.decode_cost import decode_cost
from attnbench.implementations._flash.splits import DecodePrograms, decodes, num_splits
from attnbench.implementations._flash.tiles import padded_width, tile_for, tile_table
from attnbench.measure.flop_counter import FlopCounter
from attnbench.measure.inputs import make_inputs
from attnbench.measure.interpreter import sample_kernels, trace_kernels
from attnbench.measure.lifetimes import LifetimeTracker
from attnbench.measure.operators import OperandBytes
from tests.implementations.conformance import graded

FLASH = get_implementation("triton-flash")
MASKS: tuple[Mask, ...] = (Full(), Causal(), SlidingWindow(90), SlidingWindow(33, causal=False))
SHORT = {"block_q": 16, "block_k": 32}
FORMS: dict[str, dict[str, Any]] = {
    "one-query": {"seqlen_q": 1, "seqlen_k": 200},
    "group": {"seqlen_q": 2, "seqlen_k": 170, "num_heads": 12, "num_kv_heads": 2},
    "sixteen": {"seqlen_q": 16, "seqlen_k": 130, "num_heads": 4, "num_kv_heads": 1},
    "widths": {"seqlen_q": 3, "seqlen_k": 100, "head_dim": 24, "head_dim_v": 80},
    "wide": {"seqlen_q": 1, "seqlen_k": 64, "head_dim": 200, "head_dim_v": 256},
    "ragged": {
        "seqlen_q": 4,
        "seqlen_k": 130,
        "batch": 4,
        "key_lengths": (0, 3, 117, 130),
        "query_start": (-2, -2, 113, 40),
    },
    "behind-the-keys": {"seqlen_q": 2, "seqlen_k": 90, "query_start": 150},
    "one-key": {"seqlen_q": 1, "seqlen_k": 1},
}


def problem_of(form: str, mask: Mask, **more: Any) -> Problem:
    options = {**SHORT, "return_lse": True, **more.pop("options", {})}
    shape = {"num_heads": 2, "head_dim": 16, **FORMS[form], **more}
    return Problem(**shape, mask=mask, mode="decode", options=options)


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.slug)
@pytest.mark.parametrize("form", FORMS)
def test_values(form, mask):
    assert graded("triton-flash", problem_of(form, mask)).verdict == "ok"


@pytest.mark.parametrize("splits", [1, 3, 7])
@pytest.mark.parametrize("form", ["one-query", "group", "ragged"])
def test_the_number_of_splits_does_not_matter(form, splits):
    problem = problem_of(form, Causal(), options={"num_splits": splits})
    assert graded("triton-flash", problem).verdict == "ok"


@pytest.mark.parametrize("mask", MASKS[1:3], ids=lambda mask: mask.slug)
@pytest.mark.parametrize("form", ["one-query", "group", "ragged"])
def test_values_in_float16(form, mask):
    assert graded("triton-flash", problem_of(form, mask, dtype="float16")).verdict == "ok"


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    batch, seqlen_q, seqlen_k = draw(st.integers(1, 2)), draw(st.integers(1, 16)), draw(st.integers(0, 150))
    num_kv_heads, group_size = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3]))
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more["key_lengths"] = tuple(draw(st.integers(0, seqlen_k)) for _ in range(batch))
    if draw(st.booleans()):
        more["query_start"] = tuple(draw(st.integers(-20, 170)) for _ in range(batch))
    return Problem(
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        num_heads=num_kv_heads * group_size,
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.sampled_from([16, 24])),
        head_dim_v=draw(st.sampled_from([8, 16])),
        mask=draw(st.sampled_from(MASKS)),
        mode="decode",
        options={
            "block_q": 16,
            "block_k": draw(st.sampled_from([32, 64])),
            "num_splits": draw(st.integers(1, 4)),
        },
        **more,
    )


@pytest.mark.long
@given(problems())
def test_any_geometry_is_right_and_costs_what_is_counted(problem: Problem) -> None:
    with trace_kernels() as trace:
        assert graded("triton-flash", problem).verdict == "ok"
    assert trace.requested_bytes == DecodePrograms(problem).requested_bytes()


# What lies in hidden slots, rows that see nothing, large logits, strides.


def test_hidden_slots_do_not_matter():
    problem = problem_of("ragged", Causal(), options={"num_splits": 3})
    q, k, v = (make_inputs(problem, seed=0)[name] for name in "qkv")
    clean = FLASH.attention(q, k, v, problem=problem)
    hidden_k, hidden_v = k.clone(), v.clone()
    for row, (length, start) in enumerate(zip(problem.key_limits, problem.query_starts, strict=True)):
        seen = max(0, min(length, start + problem.seqlen_q))
        hidden_k[row, :, seen:], hidden_v[row, :, seen:] = math.nan, math.inf
    poisoned = FLASH.attention(q, hidden_k, hidden_v, problem=problem)
    assert torch.equal(poisoned.out, clean.out)
    assert clean.lse is not None
    assert poisoned.lse is not None
    assert torch.equal(poisoned.lse, clean.lse)


def test_rows_that_see_nothing():
    out, lse = (
        x[0]
        for x in FLASH.attention(
            *(torch.randn(4, 2, n, 16) for n in (4, 130, 130)),
            problem=problem_of("ragged", Causal(), options={"num_splits": 4}),
        )
    )
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, -math.inf))


@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize("shift", [-6e4, 6e4])
def test_a_constant_added_to_a_row_of_logits_changes_nothing(splits, shift):
    """Splits are weighed by their largest score and sum: a split's lse has no digits left next to 6e4."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, 16, generator=generator) for n in (2, 80, 80))
    q[...], k[..., 1:] = 0, 0
    q[..., 0], q[..., 1] = 1, 1
    k[..., 0] = (k[..., 0] * 128).round() / 128
    options = {**SHORT, "num_splits": splits}
    problem = Problem(
        seqlen_q=2, seqlen_k=80, num_heads=1, head_dim=16, scale=1.0, mode="decode", options=options
    )
    plain = FLASH.attention(q, k, v, problem=problem).out
    k[..., 1] = shift
    moved = FLASH.attention(q, k, v, problem=problem).out
    assert torch.allclose(moved, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 2.0])
def test_any_finite_scale(scale):
    problem = problem_of("group", Causal(), scale=scale, options={"num_splits": 3})
    assert graded("triton-flash", problem).verdict == "ok"


def test_a_cache_is_read_where_it_lies():
    """A view of the filled slots of a cache, whose other slots are NaN, as contiguous tensors of its own."""
    problem = problem_of("group", Causal(), options={"num_splits": 2})
    q, k, v = (make_inputs(problem, seed=0)[name] for name in "qkv")
    cache = torch.full((2, 1, 2, 900, 24), math.nan)
    for held, x in zip(cache, (k, v), strict=True):
        held[:, :, : problem.seqlen_k, :16] = x
    strided = FLASH.attention(q, *cache[:, :, :, : problem.seqlen_k, :16], problem=problem).out
    assert torch.equal(strided, FLASH.attention(q, k, v, problem=problem).out)


def test_the_same_bits_each_time():
    problem = problem_of("sixteen", Causal())
    q, k, v = (make_inputs(problem, seed=0)[name] for name in "qkv")
    first = FLASH.attention(q, k, v, problem=problem)
    again = FLASH.attention(q, k, v, problem=problem)
    assert torch.equal(first.out, again.out)


# Which problems, how many splits.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"seqlen_q": 16}, True),
        ({"seqlen_q": 17}, False),
        ({"seqlen_k": 100}, False),
        ({"seqlen_k": 100, "mode": "decode"}, True),
        ({"mode": "fwd_bwd"}, False),
    ],
)
def test_few_queries_against_many_keys_decode(changes, expected):
    problem = Problem(seqlen_q=1, seqlen_k=4096).replace(**changes)
    assert decodes(problem) is expected
    names = {spec.name for spec in FLASH.kernels_for(problem)}
    assert ("flash_decode_kernel" in names) is expected
    assert ("flash_forward_kernel" in names) is not expected


def test_gradients_take_the_kernels_that_have_them():
    q, k, v = (torch.randn(1, 1, n, 16, requires_grad=True) for n in (2, 600, 600))
    problem = Problem(seqlen_q=2, seqlen_k=600, num_heads=1, head_dim=16, mode="fwd_bwd")
    FLASH.attention(q, k, v, problem=problem).out.sum().backward()
    assert q.grad is not None
    with pytest.raises(RuntimeError, match="no gradients"):
        torch.ops.attnbench.flash_decode(q, k, v, [598], [600], None, 0, 1.0, [16, 64, 4, 1], 1)[
            0
        ].sum().backward()


def test_splits_fill_the_gpu_and_are_no_shorter_than_worth_it():
    assert (
        num_splits(most_blocks=1024, programs=8, target="sm_90") == 32
    )  # of 32 blocks each, near 2 · 132 programs
    assert num_splits(most_blocks=1024, programs=1024, target="sm_90") == 1
    assert num_splits(most_blocks=1024, programs=1, target="sm_90") == 128
    assert num_splits(most_blocks=8, programs=1, target="sm_90") == 4
    for blocks in (0, 1, 3):
        assert num_splits(most_blocks=blocks, programs=1, target="sm_90") == 1
    for blocks in range(1, 300):
        for programs in (1, 7, 300):
            splits = num_splits(blocks, programs, "sm_80")
            each = -(-blocks // splits)
            assert (splits - 1) * each < blocks, "the last split has something to do"


def test_a_target_that_is_not_listed_counts_as_the_nearest_older_one():
    assert num_splits(1024, 8, "sm_103") == num_splits(1024, 8, "sm_100")
    assert set(tile_table()["splits"]["multiprocessors"]) >= {"cpu", "sm_80", "sm_90", "gfx942"}


def test_a_tile_holds_the_queries_of_a_group_and_no_more():
    step = Problem(seqlen_q=1, seqlen_k=4096, num_heads=8, num_kv_heads=8, dtype="bfloat16", mode="decode")
    for target in tile_table()["decode"]:
        for head_dim in (16, 64, 80, 128, 256):
            for heads, kv_heads, block_q in ((8, 8, 16), (32, 1, 32)):
                problem = step.replace(
                    head_dim=head_dim, head_dim_v=head_dim, num_heads=heads, num_kv_heads=kv_heads
                )
                assert tile_for(problem, target, "decode").block_q == block_q


@pytest.mark.parametrize(
    ("value", "reason"), [(0, "an integer of at least 1"), (1.5, "an integer"), (129, "at most 128")]
)
def test_impossible_numbers_of_splits_are_refused(value, reason):
    (found,) = refusals(FLASH, Problem(seqlen_q=1, options={"num_splits": value}))
    assert reason in found


# Costs: what is counted is what the closed form says.

COUNTED = {
    "split": problem_of("group", Causal(), options={"num_splits": 3}),
    "one-split": problem_of("group", Causal(), options={"num_splits": 1}),
    "several-row-tiles": problem_of("sixteen", SlidingWindow(90), options={"num_splits": 2, "block_k": 64}),
    "ragged": problem_of("ragged", SlidingWindow(90), options={"num_splits": 5}),
    "half": problem_of("group", Full(), dtype="float16", options={"num_splits": 2}),
    "wide-values": problem_of("widths", Causal(), options={"num_splits": 2}),
    "as-the-table-has-it": Problem(seqlen_q=2, seqlen_k=2048, num_heads=4, num_kv_heads=1, mode="decode"),
}


def called(problem: Problem) -> Tensor:
    inputs = make_inputs(problem, seed=0)
    return FLASH.attention(inputs["q"], inputs["k"], inputs["v"], problem=problem).out


@pytest.mark.parametrize("problem", COUNTED.values(), ids=COUNTED)
def test_kernels_ask_for_the_bytes_of_the_closed_form(problem):
    with trace_kernels() as trace:
        called(problem)
    programs = DecodePrograms(problem)
    assert trace.requested_bytes == programs.requested_bytes()
    assert [launch.kernel for launch in trace.launches] == [
        f"flash_{name}_kernel" for name in programs.kernels
    ]
    with trace_kernels(sample_kernels(FLASH, problem)) as sampled:
        out = called(problem)
    assert sampled.requested_bytes == trace.requested_bytes
    assert sampled.programs_run <= trace.programs_run
    rows = torch.from_numpy(sampled.computed_rows(problem.batch, problem.num_heads, problem.seqlen_q))
    assert rows.any()
    assert torch.isfinite(out[rows]).all()


@pytest.mark.parametrize("problem", COUNTED.values(), ids=COUNTED)
def test_operators_and_tensors_are_those_of_the_closed_form(problem, monkeypatch):
    products = []
    matmul = interpreter_builder.create_dot

    def counted(*arguments):
        products.append(matmul(*arguments))
        return products[-1]

    inputs = [make_inputs(problem, seed=0)[name] for name in "qkv"]
    with LifetimeTracker() as lifetimes:
        resident = lifetimes.hold(inputs)
        with OperandBytes() as operands, FlopCounter() as flops:
            monkeypatch.setattr(interpreter_builder, "create_dot", counted)
            FLASH.attention(*inputs, problem=problem)
            monkeypatch.undo()
    programs, tile = DecodePrograms(problem), DecodePrograms(problem).tile
    assert len(products) == 2 * programs.visited()
    cost = decode_cost(problem)  # of the kernels alone: a step from a state writes its cache besides
    assert operands.total_bytes == cost.operand_bytes
    assert lifetimes.peak_bytes - resident == cost.peak_bytes
    widths = sum(padded_width(width) for width in (problem.head_dim, problem.head_dim_v))
    executed = 2 * programs.visited() * tile.block_q * tile.block_k * widths
    assert flops.flops == cost.executed_flops == executed


def test_keys_are_read_once_a_group():
    """A step of 32 query heads over 8 of keys and values reads the cache once and little else."""
    grouped = Problem(
        seqlen_q=1, seqlen_k=1 << 17, num_heads=32, num_kv_heads=8, dtype="float16", mode="decode"
    )
    cache_bytes = 2 * 8 * (1 << 17) * 64 * 2
    requested = FLASH.cost(grouped).requested_bytes
    assert requested is not None
    assert cache_bytes < requested < 1.01 * cache_bytes


@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(1 << 15), SlidingWindow(1 << 15, causal=False)])
def test_leading_terms_lead(mask):
    problem = Problem(
        seqlen_q=16,
        seqlen_k=1 << 17,
        num_heads=8,
        num_kv_heads=2,
        mask=mask,
        query_start=1 << 16 if mask != Causal() else None,
    )
    cost = FLASH.cost(problem)
    letters = {"B": 1, "H": 8, "G": 2, "n": 16, "m": 1 << 17, "d": 64, "e": 64, "W": 1 << 15}
    for quantity, exact in cost.theory().items():
        if quantity in cost.leading:
            term = cost.leading_term(quantity)
            value = float(term.subs({symbol: letters[symbol.name] for symbol in term.free_symbols}))
            assert value == pytest.approx(exact, rel=0.1), quantity
