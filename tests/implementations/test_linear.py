"""What is special about linear attention: three forms of one function, a state of fixed size, exact costs."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import elu

from attnbench.contract import state as states
from attnbench.contract.discovery import get_implementation
from attnbench.contract.evaluation import truth
from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Causal, Full
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import LINEAR_ELU
from attnbench.implementations._linear.parts import Pieces
from attnbench.measure.flop_counter import FlopCounter
from attnbench.measure.lifetimes import LifetimeTracker
from attnbench.measure.operators import OperandBytes

LINEAR = get_implementation("linear")
DIM, VALUE_DIM = 8, 6
FORMS = {"float64": 1e-12, "float32": 1e-5}


def tensors(problem: Problem, *, gradients: bool = False) -> list[Tensor]:
    p, dtype = problem, getattr(torch, problem.dtype)
    generator = torch.Generator().manual_seed(3)
    shapes = (
        (p.batch, p.num_heads, p.seqlen_q, p.head_dim),
        (p.batch, p.num_kv_heads, p.seqlen_k, p.head_dim),
        (p.batch, p.num_kv_heads, p.seqlen_k, p.head_dim_v),
    )
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(gradients)
        for shape in shapes
    ]


def linear_problem(seqlen_q: int, **more: Any) -> Problem:
    shape: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": DIM, "head_dim_v": VALUE_DIM}
    return Problem(**{**shape, "dtype": "float64", "options": {"chunk_size": 16}, **more}, seqlen_q=seqlen_q)


def decode(problem: Problem, inputs: list[Tensor], lengths: list[int]) -> tuple[Tensor, Any]:
    """Run the sequence in pieces of these lengths with a carried state."""
    state = states.new_state(LINEAR, problem, problem.seqlen_k)
    outs, first = [], 0
    for length in lengths:
        piece = [x[:, :, first : first + length] for x in inputs]
        result, state = states.extend(LINEAR, state, *piece, problem=problem)
        outs.append(result.out)
        first += length
    assert first == problem.seqlen_k
    assert state.lengths == (first,) * problem.batch
    return torch.cat(outs, dim=2), state


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize("lengths", [[n, 130 - n] for n in (1, 15, 16, 17, 64)] + [[1] * 130, [130]])
def test_parallel_chunked_and_token_by_token_agree(dtype: str, lengths: list[int]) -> None:
    problem, tolerance = linear_problem(130, dtype=dtype, batch=2), FORMS[dtype]
    inputs = tensors(problem)
    q, k, v = (x.double() for x in inputs)
    parallel = truth(LINEAR_ELU, q, k, v, problem=problem).out
    chunked = LINEAR.attention(*inputs, problem=problem).out
    stepped, state = decode(problem, inputs, lengths)
    for out in (chunked, stepped):
        torch.testing.assert_close(out.double(), parallel, rtol=tolerance, atol=tolerance)
    features = elu(k) + 1
    torch.testing.assert_close(state.kv.double(), features.mT @ v, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(state.normaliser.double(), features.sum(2), rtol=tolerance, atol=tolerance)


def test_decoding_under_a_full_mask_sees_all_tokens_so_far() -> None:
    problem = linear_problem(30, mask=Full())
    q, k, v = tensors(problem)
    out, _ = decode(problem, [q, k, v], [12, 18])
    first = problem.replace(seqlen_q=12, seqlen_k=12)
    expected = truth(LINEAR_ELU, q[:, :, :12], k[:, :, :12], v[:, :, :12], problem=first).out
    torch.testing.assert_close(out[:, :, :12], expected)
    torch.testing.assert_close(out[:, :, 12:], truth(LINEAR_ELU, q, k, v, problem=problem).out[:, :, 12:])


@pytest.mark.parametrize(("dtype", "width"), [("float16", 4), ("float32", 4), ("float64", 8)])
def test_the_state_has_a_fixed_size_whatever_the_length(dtype: str, width: int) -> None:
    problem = linear_problem(1, dtype=dtype, batch=3)
    state = states.new_state(LINEAR, problem, 1 << 20)
    assert state.sums.nbytes == 3 * 2 * DIM * (VALUE_DIM + 1) * width
    for max_seqlen in (1, 1 << 20):
        assert states.state_bytes(LINEAR, problem, max_seqlen) == state.sums.nbytes


def test_a_state_in_half_precision_inputs_does_not_stall() -> None:
    # φ(1) = 2; a float16 sum of 2 · 2 stands still at 8192 and a sum of 65536 overflows.
    problem = Problem(seqlen_q=1 << 16, num_heads=1, head_dim=1, dtype="float16")
    ones = torch.ones(1, 1, 1 << 16, 1, dtype=torch.float16)
    state = states.new_state(LINEAR, problem, 1 << 16)
    result, state = states.extend(LINEAR, state, ones, ones, ones, problem=problem)
    assert state.normaliser.item() == 1 << 17
    assert torch.equal(result.out, ones)


def test_65536_tokens_in_float16_keep_their_normaliser() -> None:
    problem = Problem(seqlen_q=1 << 16, num_heads=1, head_dim=DIM, dtype="float16")
    q, _, v = tensors(problem)
    leaves = [q.requires_grad_(), torch.ones_like(q).requires_grad_(), (1 + v.abs()).requires_grad_()]
    out = LINEAR.attention(*leaves, problem=problem).out
    positions = torch.arange(1, (1 << 16) + 1, dtype=torch.float64)
    means = leaves[2].detach()[0, 0].double().cumsum(0) / positions[:, None]
    torch.testing.assert_close(out[0, 0].double(), means, rtol=1e-3, atol=0)
    # dv_j = Σ_{i ≥ j} 1 / i: every key is alike.
    (dv,) = torch.autograd.grad(out, leaves[2], torch.ones_like(out))
    expected = (1 / positions).flip(0).cumsum(0).flip(0)[:, None].expand(-1, DIM)
    torch.testing.assert_close(dv[0, 0].double(), expected, rtol=1e-3, atol=1e-6)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    batch, seqlen_q, seqlen_k = draw(st.integers(1, 3)), draw(st.integers(0, 100)), draw(st.integers(0, 100))
    more: dict[str, Any] = {
        "batch": batch,
        "seqlen_k": seqlen_k,
        "num_kv_heads": draw(st.sampled_from([1, 2, 4])),
        "mask": draw(st.sampled_from([Causal(), Full()])),
        "options": {"chunk_size": draw(st.sampled_from([1, 7, 16, 64]))},
    }
    if draw(st.booleans()):
        more["key_lengths"] = tuple(draw(st.integers(0, seqlen_k)) for _ in range(batch))
    if draw(st.booleans()):
        more["query_start"] = tuple(draw(st.integers(-50, 150)) for _ in range(batch))
    return linear_problem(seqlen_q, **more)


@given(problems())
def test_any_geometry_equals_the_definition(problem: Problem) -> None:
    inputs = tensors(problem, gradients=True)
    out = LINEAR.attention(*inputs, problem=problem).out
    grad_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(4), dtype=out.dtype)
    gradients = torch.autograd.grad(out, inputs, grad_out)
    expected = truth(LINEAR_ELU, *inputs, problem=problem, grad_out=grad_out)
    wanted = (expected.out, expected.dq, expected.dk, expected.dv)
    for got, want in zip((out, *gradients), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_gradcheck() -> None:
    problem = linear_problem(9, batch=2, seqlen_k=12, key_lengths=(12, 7), options={"chunk_size": 4})
    assert torch.autograd.gradcheck(
        lambda q, k, v: LINEAR.attention(q, k, v, problem=problem).out,
        tensors(problem, gradients=True),
        fast_mode=True,
    )


def test_the_future_inside_a_chunk_leaves_the_past_bit_identical() -> None:
    problem = linear_problem(64, dtype="float32", options={"chunk_size": 64})
    q, k, v = tensors(problem)
    before = LINEAR.attention(q, k, v, problem=problem).out
    for position in (1, 31, 63):
        changed_k, changed_v = k.clone(), v.clone()
        changed_k[:, :, position:] *= -40
        changed_v[:, :, position:] += 1e6
        after = LINEAR.attention(q, changed_k, changed_v, problem=problem).out
        assert torch.equal(before[:, :, :position], after[:, :, :position])
        assert not torch.equal(before[:, :, position:], after[:, :, position:])


def test_features_that_all_underflow_give_zero_and_no_nan() -> None:
    problem = linear_problem(5, dtype="float32", num_kv_heads=4)
    q, k, v = tensors(problem, gradients=True)
    out = LINEAR.attention(q, k - 200, v, problem=problem).out
    assert torch.equal(out, torch.zeros_like(out))
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), [(0, 4, 1), (3, 0, 1), (3, 3, 0)])
@pytest.mark.parametrize("mask", [Causal(), Full()], ids=["causal", "full"])
def test_empty_inputs_give_zeros_and_not_none(
    seqlen_q: int, seqlen_k: int, batch: int, mask: Causal | Full
) -> None:
    problem = linear_problem(seqlen_q, seqlen_k=seqlen_k, batch=batch, mask=mask)
    inputs = tensors(problem, gradients=True)
    out = LINEAR.attention(*inputs, problem=problem).out
    assert out.shape == (batch, 4, seqlen_q, VALUE_DIM)
    assert not out.any()
    for gradient in torch.autograd.grad(out.sum(), inputs):
        assert not gradient.any()


@pytest.mark.parametrize("chunk_size", [0, -1, 2.5, "64"])
def test_a_chunk_size_that_is_none_is_refused(chunk_size: Any) -> None:
    reasons = refusals(LINEAR, Problem(seqlen_q=8, options={"chunk_size": chunk_size}))
    assert reasons == [f"chunk_size must be a positive integer, not {chunk_size!r}"]


COUNTED: dict[str, dict[str, Any]] = {
    "plain": {"seqlen_q": 300},
    "pieces": {"seqlen_q": 1100},
    "full": {"seqlen_q": 1000, "mask": Full()},
    "grouped": {"seqlen_q": 100, "num_kv_heads": 2, "batch": 2, "head_dim_v": 16},
    "half": {"seqlen_q": 70, "seqlen_k": 200, "dtype": "float16"},
    "bfloat16": {"seqlen_q": 200, "dtype": "bfloat16"},
    "double-positions": {"seqlen_q": 100, "query_start": -30, "key_lengths": (50,), "dtype": "float64"},
    "one-query": {"seqlen_q": 1, "seqlen_k": 500},
    "key-lengths": {"seqlen_q": 700, "batch": 3, "num_heads": 2, "key_lengths": (700, 650, 0)},
}


@pytest.mark.parametrize("shape", COUNTED.values(), ids=COUNTED)
def test_costs_equal_what_operators_and_tensors_count(shape: dict[str, Any]) -> None:
    problem = Problem(**shape)
    inputs = tensors(problem)
    with LifetimeTracker() as lifetimes:
        lifetimes.hold(inputs)
        resident = lifetimes.live_bytes
        with OperandBytes() as operands, FlopCounter() as flops:
            LINEAR.attention(*inputs, problem=problem)
    cost = LINEAR.cost(problem)
    assert cost.executed_flops == flops.flops
    assert cost.operand_bytes == operands.total_bytes
    if cost.peak_bytes is None:
        assert problem.seqlen_k != problem.seqlen_q or problem.key_lengths is not None
    else:
        assert cost.peak_bytes == lifetimes.peak_bytes - resident


@pytest.mark.parametrize("mask", [Causal(), Full()], ids=["causal", "full"])
def test_backward_flops_equal_what_operators_count(mask: Causal | Full) -> None:
    problem = Problem(seqlen_q=200, seqlen_k=300, mask=mask, mode="bwd", num_kv_heads=4, head_dim_v=32)
    out = LINEAR.attention(*tensors(problem, gradients=True), problem=problem).out
    with FlopCounter() as flops:
        out.sum().backward()
    assert LINEAR.cost(problem).executed_flops == flops.flops


def test_flops_grow_with_the_sequence_and_not_with_its_square() -> None:
    costs = [LINEAR.cost(Problem(seqlen_q=n, num_heads=1)) for n in (4096, 8192)]
    assert costs[0].flops == 2 * 4096 * 2 * 64 * 65
    assert costs[1].flops == 2 * costs[0].flops
    assert costs[0].executed_flops is not None
    assert costs[1].executed_flops == 2 * costs[0].executed_flops


def peak_bytes(seqlen: int, mode: str) -> int:
    """Peak beyond the inputs, on fake tensors."""
    with FakeTensorMode(), LifetimeTracker() as lifetimes:
        inputs = [torch.empty(1, 8, seqlen, 64, requires_grad=mode == "fwd_bwd") for _ in range(3)]
        resident = lifetimes.hold(inputs)
        lifetimes.reset_peak()
        out = LINEAR.attention(*inputs, problem=Problem(seqlen_q=seqlen, mode=mode)).out
        if mode == "fwd_bwd":
            torch.autograd.grad(out, inputs, out)
    return lifetimes.peak_bytes - resident


@pytest.mark.parametrize(
    ("mode", "whole_tensors"), [("fwd", 1), pytest.param("fwd_bwd", 4, marks=pytest.mark.long)]
)
def test_memory_beyond_the_outputs_is_constant(mode: str, whole_tensors: int) -> None:
    per_token = 4 * 8 * (whole_tensors * 64 + 1)  # out and gradients, and a denominator a row
    small, large = peak_bytes(2_048, mode), peak_bytes(8_192, mode)
    assert large - small == per_token * (8_192 - 2_048)
    assert small - per_token * 2_048 < 16 << 20


@given(
    first=st.integers(0, 50), length=st.integers(0, 200), chunk=st.integers(1, 40), at_once=st.integers(1, 9)
)
def test_pieces_cover_their_tokens_and_are_counted_by_kind(
    first: int, length: int, chunk: int, at_once: int
) -> None:
    pieces = Pieces(first, length, chunk, at_once)
    found = list(pieces)
    covered = [piece.first + t for piece in found for t in range(piece.size * piece.num_chunks)]
    assert covered == list(range(first, first + length))
    whole = [piece for piece in found if piece.size == chunk]
    assert found[: len(whole)] == whole
    assert all(piece.num_chunks <= at_once for piece in whole)
    assert len(found) - len(whole) == (length % chunk > 0)
    assert len(whole) == -(-(length // chunk) // at_once)
    kinds = Counter((piece.size, piece.num_chunks) for piece in found)
    counted: Counter[tuple[int, int]] = Counter()
    for size, num_chunks, times in pieces.kinds():
        counted[size, num_chunks] += times
    assert counted == kinds
    assert list(reversed(pieces)) == found[::-1]
    assert bool(pieces) == bool(found)
