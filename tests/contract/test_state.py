"""Decoding state: what fits, what is refused and leaves no trace, what is kept and put back."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from attnbench.contract.cache import KeyValueCache
from attnbench.contract.discovery import find_implementations
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import Implementation
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.state import append, extend, keep, new_state, read, state_bytes
from attnbench.contract.steps import decoded, plan_step, reading
from attnbench.measure.inputs import make_inputs

FIVE = find_implementations()
NAIVE = FIVE["naive"]
FORM: dict[str, Any] = {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
STATES = {
    "cache": (NAIVE, Causal()),
    "ring": (NAIVE, SlidingWindow(4)),
    "window": (FIVE["sliding-window"], SlidingWindow(4)),
    "linear": (FIVE["linear"], Causal()),
}


def tokens(problem: Problem, size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs = make_inputs(problem.replace(seqlen_q=size, seqlen_k=size, key_lengths=None), seed=seed)
    return inputs["q"], inputs["k"], inputs["v"]


def filled(
    implementation: Implementation, problem: Problem, size: int, max_seqlen: int = 32
) -> tuple[Any, torch.Tensor]:
    q, k, v = tokens(problem, size)
    state = new_state(implementation, problem, max_seqlen)
    output, state = extend(implementation, state, q, k, v, problem=problem)
    return state, output.out


@pytest.mark.parametrize("name", ["naive", "sdpa", "triton-flash", "sliding-window", "linear"])
def test_the_bytes_of_a_state_are_those_of_its_tensors(name):
    mask = SlidingWindow(6) if name == "sliding-window" else Causal()
    problem = Problem(seqlen_q=1, **FORM, head_dim_v=4, mask=mask, dtype="float16")
    for max_seqlen in (0, 5, 32):
        state = new_state(FIVE[name], problem, max_seqlen)
        tensors = [value for value in vars(state).values() if isinstance(value, torch.Tensor)]
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        assert held == state_bytes(FIVE[name], problem, max_seqlen)


def test_a_full_cache_refuses_more_and_is_left_as_it_was():
    problem = Problem(seqlen_q=1, **FORM)
    state, _ = filled(NAIVE, problem, 3, max_seqlen=4)
    before = (state.k.clone(), state.v.clone(), state.lengths)
    q, k, v = tokens(problem, 2, seed=1)
    with pytest.raises(UsageError, match="state: the cache holds 4 positions, 5 are needed"):
        extend(NAIVE, state, q, k, v, problem=problem)
    with pytest.raises(UsageError, match="state: the cache holds 4 positions, 5 are needed"):
        append(NAIVE, state, k, v, problem=problem)
    for was, now in zip(before[:2], (state.k, state.v), strict=True):
        torch.testing.assert_close(was, now, rtol=0, atol=0, equal_nan=True)
    assert state.lengths == before[2] == (3, 3)
    # A chunk of which less is valid still fits.
    extend(NAIVE, state, q, k, v, problem=problem.replace(seqlen_q=2, seqlen_k=2, key_lengths=(1, 0)))
    assert state.lengths == (4, 3)


@pytest.mark.parametrize("form", STATES)
def test_what_does_not_fit_is_refused_and_leaves_no_trace(form):
    implementation, mask = STATES[form]
    problem = Problem(seqlen_q=1, **FORM, mask=mask)
    state, _ = filled(implementation, problem, 6)
    restore = keep(state)
    q, k, v = tokens(problem, 3, seed=1)
    wrong = [
        (q[:, :3], k, v, problem, r"q: float32 \[2, 4, 3, 8\] is needed, not float32 \[2, 3, 3, 8\]"),
        (q, k[:, :, :2], v, problem, r"v: float32 \[2, 2, 2, 8\] is needed, not float32 \[2, 2, 3, 8\]"),
        (
            q,
            k[:, :, :2],
            v[:, :, :2],
            problem,
            r"q: float32 \[2, 4, 2, 8\] is needed, not float32 \[2, 4, 3, 8\]",
        ),
        (q, k[:1], v, problem, r"k: float32 \[2, 2, 3, 8\] is needed, not float32 \[1, 2, 3, 8\]"),
        (q, k[0], v, problem, r"k: float32 .* is needed, not float32 \[2, 3, 8\]"),
        (q, k, v[..., :4], problem, r"v: float32 \[2, 2, 3, 8\] is needed, not float32 \[2, 2, 3, 4\]"),
        (q, k, v.double(), problem, r"v: float32 .* is needed, not float64"),
        (q[:1], k[:1], v[:1], problem.replace(batch=1), "state: made for 2 rows, the chunk has 1"),
        (
            q,
            k,
            v,
            problem.replace(seqlen_k=4, key_lengths=(4, 1)),
            "key_lengths: at most 3, the tokens of the chunk, not 4",
        ),
        (q, k, v, problem.replace(options={"nothing": 1}), "has no option 'nothing'"),
    ]
    for *given, asked, message in wrong:
        with pytest.raises(UsageError, match=message):
            extend(implementation, state, *given, problem=asked)
    found = extend(implementation, state, q, k, v, problem=problem)[0].out
    state = restore()
    assert torch.equal(extend(implementation, state, q, k, v, problem=problem)[0].out, found)
    whole, _ = filled(implementation, problem, 6)
    assert torch.equal(extend(implementation, whole, q, k, v, problem=problem)[0].out, found)


def test_an_implementation_is_asked_only_what_it_supports():
    problem = Problem(seqlen_q=1, **FORM)
    plain = Implementation(
        **{**vars(NAIVE), "name": "plain", "supports": NAIVE.supports - {"key-lengths", "query-start"}}
    )
    state, _ = filled(plain, problem, 3)
    q, k, v = tokens(problem, 2, seed=1)
    with pytest.raises(UsageError, match="plain does not support key-lengths"):
        extend(plain, state, q, k, v, problem=problem.replace(seqlen_q=2, seqlen_k=2, key_lengths=(2, 1)))
    assert state.lengths == (3, 3)
    extend(plain, state, q, k, v, problem=problem)
    assert state.lengths == (5, 5)
    # Rows of different lengths whose windows are equally full are one geometry to the core.
    windowed = problem.replace(mask=SlidingWindow(3))
    state = new_state(plain, windowed, 32)
    append(plain, state, k, v, problem=windowed.replace(seqlen_q=2, seqlen_k=2, key_lengths=(2, 0)))
    append(plain, state, *tokens(windowed, 5)[1:], problem=windowed)
    extend(plain, state, q, k, v, problem=windowed)
    assert state.lengths == (9, 7)


def test_an_own_state_without_key_lengths_is_refused_rows_of_different_lengths():
    linear = FIVE["linear"]
    plain = Implementation(**{**vars(linear), "name": "plain", "supports": linear.supports - {"key-lengths"}})
    problem = Problem(seqlen_q=1, **FORM)
    state, _ = filled(plain, problem, 3)
    q, k, v = tokens(problem, 2)
    with pytest.raises(UsageError, match="plain does not support key-lengths"):
        extend(plain, state, q, k, v, problem=problem.replace(seqlen_q=2, seqlen_k=2, key_lengths=(2, 1)))
    assert state.lengths == (3, 3)


@pytest.mark.parametrize("key_lengths", [None, (9, 2)], ids=["equal", "ragged"])
@pytest.mark.parametrize("form", STATES)
def test_appending_leaves_the_state_that_extending_leaves(form, key_lengths, monkeypatch):
    monkeypatch.setattr("attnbench.contract.state.TOKENS_AT_ONCE", 4)
    implementation, mask = STATES[form]
    problem = Problem(seqlen_q=9, **FORM, mask=mask, dtype="float64", key_lengths=key_lengths)
    q, k, v = tokens(problem, 9)
    extended = extend(implementation, new_state(implementation, problem, 16), q, k, v, problem=problem)[1]
    appended = append(implementation, new_state(implementation, problem, 16), k, v, problem=problem)
    assert appended.lengths == extended.lengths == (key_lengths or (9, 9))
    step = problem.replace(seqlen_q=1, seqlen_k=1, key_lengths=None)
    outs = [
        extend(implementation, state, *tokens(step, 1, seed=1), problem=step)[0].out
        for state in (extended, appended)
    ]
    torch.testing.assert_close(*outs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("form", STATES)
def test_a_state_that_was_kept_comes_back_as_often_as_asked(form):
    implementation, mask = STATES[form]
    problem = Problem(seqlen_q=1, **FORM, mask=mask)
    state, _ = filled(implementation, problem, 7)
    restore = keep(state)
    step = tokens(problem, 1, seed=1)
    first = extend(implementation, state, *step, problem=problem)[0].out
    for _ in range(3):
        assert restore() is state
        assert state.lengths == (7, 7)
        assert torch.equal(extend(implementation, state, *step, problem=problem)[0].out, first)
        extend(implementation, state, *tokens(problem, 5, seed=2), problem=problem)


def test_keeping_a_cache_copies_nothing():
    state, _ = filled(NAIVE, Problem(seqlen_q=1, **FORM), 3)
    k = state.k.clone()
    restore = keep(state)
    state.k.zero_()
    restore()
    assert not state.k.any()
    assert k.any()


@dataclass
class Nested:
    layers: list[Any]
    lengths: tuple[int, ...]


class Opaque:
    def __init__(self) -> None:
        self.numbers = [1, 2]


def test_any_state_can_be_kept():
    opaque = Opaque()
    hidden, cell = torch.ones(3), torch.zeros(2)
    inner = KeyValueCache(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), lengths=(1,), ring=True)
    state = Nested([(hidden, cell), inner, opaque, None], (4, 4))
    restore = keep(state)
    for _ in range(2):
        hidden.fill_(7)
        inner.k.fill_(7)
        inner.lengths = (9,)
        state.layers[2].numbers.append(3)
        state.layers[0] = (torch.full((3,), 5.0), cell)
        state.lengths = (9, 9)
        assert restore() is state
        assert torch.equal(state.layers[0][0], torch.ones(3))
        assert torch.equal(inner.k, torch.zeros(1, 1, 2, 1))
        assert (inner.lengths, state.lengths) == ((1,), (4, 4))
        assert state.layers[1] is inner
        assert state.layers[2].numbers == [1, 2]
        assert state.layers[3] is None


@pytest.mark.parametrize("form", STATES)
def test_an_empty_chunk_and_an_empty_batch_change_nothing(form):
    implementation, mask = STATES[form]
    problem = Problem(seqlen_q=1, **FORM, mask=mask)
    state, _ = filled(implementation, problem, 6)
    assert extend(implementation, state, *tokens(problem, 0), problem=problem)[0].out.shape == (2, 4, 0, 8)
    assert state.lengths == (6, 6)
    none = problem.replace(batch=0)
    state, out = filled(implementation, none, 6)
    assert out.shape == (0, 4, 6, 8)
    assert state.lengths == ()


def test_nothing_is_recorded():
    problem = Problem(seqlen_q=1, **FORM)
    q, k, v = (x.requires_grad_() for x in tokens(problem, 3))
    state = new_state(NAIVE, problem, 4)
    output, state = extend(NAIVE, state, q, k, v, problem=problem)
    assert not output.out.requires_grad
    assert not state.k.requires_grad


@pytest.mark.parametrize(("dtype", "atol"), [("float64", 1e-12), ("float32", 1e-5)])
def test_reading_a_state_is_attending_to_all_that_it_holds(dtype, atol):
    linear = FIVE["linear"]
    whole = Problem(seqlen_q=7, seqlen_k=20, **FORM, mask=Full(), dtype=dtype, key_lengths=(20, 0))
    inputs = make_inputs(whole, seed=0)
    q, k, v = (inputs[name] for name in "qkv")
    expected = linear.attention(q, k, v, problem=whole).out
    state = new_state(linear, whole, 20)
    for part, counts in ((slice(0, 12), (12, 0)), (slice(12, 20), (8, 0))):
        size = part.stop - part.start
        chunk = whole.replace(seqlen_q=size, seqlen_k=size, key_lengths=counts)
        state = append(linear, state, k[:, :, part], v[:, :, part], problem=chunk)
    sums = state.sums.clone()
    for mask in (Full(), Causal()):
        out = read(linear, state, q, problem=whole.replace(mask=mask)).out
        torch.testing.assert_close(out, expected, rtol=0, atol=atol)
    assert torch.equal(out[1], torch.zeros_like(out[1])), "a row of no tokens"
    assert torch.equal(state.sums, sums)
    assert state.lengths == (20, 0)


def test_what_cannot_be_read_is_refused():
    problem = Problem(seqlen_q=1, **FORM)
    state, _ = filled(FIVE["linear"], problem, 3)
    q, _, _ = tokens(problem, 1)
    with pytest.raises(UsageError, match="naive has no read: it attends to its state only as it extends it"):
        read(NAIVE, new_state(NAIVE, problem, 3), q, problem=problem)
    with pytest.raises(UsageError, match=r"q: float32 \[2, 4, 1, 8\] is needed, not float32 \[2, 4, 1, 7\]"):
        read(FIVE["linear"], state, q[..., :7], problem=problem)
    with pytest.raises(UsageError, match="state: made for 2 rows, the chunk has 1"):
        read(FIVE["linear"], state, q[:1], problem=problem.replace(batch=1))
    with pytest.raises(UsageError, match="linear does not support scale"):
        read(FIVE["linear"], state, q, problem=problem.replace(scale=2.0))


def test_what_is_asked_of_a_core_that_reads_its_state():
    step = Problem(seqlen_q=2, seqlen_k=30, **FORM, key_lengths=(30, 4), query_start=(28, 2), mode="decode")
    assert reading(step) == Problem(seqlen_q=2, seqlen_k=0, **FORM, mask=Full(), mode="decode")


def test_a_negative_length_is_refused():
    with pytest.raises(UsageError, match="max_seqlen must not be negative, not -1"):
        new_state(NAIVE, Problem(seqlen_q=1), -1)


def test_a_full_ring_is_read_as_it_lies_unless_order_matters():
    problem = Problem(seqlen_q=1, batch=2, mask=SlidingWindow(4))
    as_it_lies = plan_step(problem, 4, (9, 5), (1, 1), 1, in_order=False)
    assert as_it_lies.kept is None
    assert (as_it_lies.problem.seqlen_k, as_it_lies.problem.query_start) == (4, None)
    ordered = plan_step(problem, 4, (9, 5), (1, 1), 1, in_order=True)
    assert ordered.kept == (3, 3)
    assert ordered.problem == as_it_lies.problem
    uneven = plan_step(problem, 4, (9, 1), (3, 2), 3, in_order=False)
    assert uneven.kept == (3, 1)
    assert (uneven.problem.seqlen_k, uneven.problem.query_starts) == (6, (3, 1))
    assert uneven.problem.key_limits == (6, 3)


def test_the_step_of_a_decoding_problem():
    causal = Problem(seqlen_q=1, seqlen_k=100, mode="decode")
    assert decoded(causal, in_order=False) == causal
    window = causal.replace(mask=SlidingWindow(8))
    assert decoded(window, in_order=False) == window.replace(seqlen_k=8)
    assert decoded(window.replace(seqlen_k=5), in_order=False) == window.replace(seqlen_k=5)
    assert decoded(window.replace(mode="fwd"), in_order=False) == window.replace(mode="fwd")
    ragged = window.replace(batch=2, key_lengths=(100, 3), query_start=(99, 2))
    step = decoded(ragged, in_order=False)
    assert (step.seqlen_k, step.key_lengths, step.query_start) == (8, (8, 3), (7, 2))
    # Queries in the middle are no step, and neither are those of an encoder.
    middle = window.replace(query_start=50)
    assert decoded(middle, in_order=False) == middle
    both_sides = causal.replace(mask=SlidingWindow(8, causal=False))
    assert decoded(both_sides, in_order=False) == both_sides
    assert decoded(causal.replace(mask=Full()), in_order=False).seqlen_k == 100
