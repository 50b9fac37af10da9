"""Decoding by every implementation: whatever the chunks, the result is that of one pass."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.cache import KeyValueCache
from attnbench.contract.evaluation import baseline, truth
from attnbench.contract.implementation import Implementation, refusals
from attnbench.contract.masks import Causal, Mask, SlidingWindow
from attnbench.contract.problem import DTYPE_BYTES, Problem
from attnbench.contract.state import extend, new_state, state_bytes
from attnbench.measure.agreement import grade
from attnbench.measure.inputs import make_inputs
from attnbench.measure.operators import OperandBytes
from tests.implementations.conformance import uncompiled

TOTAL = 23
MASKS: tuple[Mask, ...] = (Causal(), SlidingWindow(5), SlidingWindow(1), SlidingWindow(40))
IMPLEMENTATIONS = uncompiled()
TOLERANCES = {"float64": 1e-12, "float32": 1e-5}


@dataclass(frozen=True)
class Chunk:
    """One call: a chunk of ``size`` tokens of which ``added[b]`` are row b's."""

    size: int
    added: tuple[int, ...]


def uniform(*sizes: int) -> tuple[Chunk, ...]:
    return tuple(Chunk(size, (size,) * 3) for size in sizes)


PLANS = {
    "steps": uniform(*[1] * TOTAL),
    "prefill": uniform(20, 1, 1, 1),
    "whole": uniform(TOTAL),
    "chunks": uniform(2, 7, 1, 9, 4),
    # Rows of different lengths, one of them empty at first, that step together and meet at the end.
    "ragged": (
        Chunk(10, (10, 3, 0)),
        Chunk(6, (4, 6, 2)),
        *[Chunk(1, (1, 1, 1))] * 4,
        Chunk(3, (0, 3, 3)),
        Chunk(1, (0, 1, 0)),
        Chunk(17, (5, 6, 14)),
    ),
}


def problem_of(mask: Mask, dtype: str, **fields: object) -> Problem:
    form = {"batch": 3, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "head_dim_v": 8} | fields
    return Problem(seqlen_q=TOTAL, mask=mask, dtype=dtype, **form)  # type: ignore[arg-type]  # fields by name


def supported(dtype: str, names: tuple[str, ...] = ()) -> list[tuple[str, Mask]]:
    """Pairs that do the whole, and so must do the pieces."""
    return [
        (name, mask)
        for name, implementation in IMPLEMENTATIONS.items()
        for mask in MASKS
        if (not names or name in names) and not refusals(implementation, decodable(name, mask, dtype))
    ]


def decodable(name: str, mask: Mask, dtype: str) -> Problem:
    # The one backend without a width of its own for values.
    fields = {"head_dim_v": 16} if name == "sdpa-flash" else {}
    return problem_of(mask, dtype, mode="decode", **fields)


def poison(state: object) -> None:
    """Fill what was never written with NaN."""
    if isinstance(state, KeyValueCache):
        state.k.fill_(torch.nan)
        state.v.fill_(torch.nan)


def decode(
    name: str, problem: Problem, inputs: dict[str, torch.Tensor], plan: tuple[Chunk, ...]
) -> torch.Tensor:
    """Out ``[B, H, N, Dv]``, put together from what each chunk gave; padding is NaN."""
    implementation = IMPLEMENTATIONS[name]
    state = new_state(implementation, problem, problem.seqlen_k)
    poison(state)
    held = sum(x.numel() * x.element_size() for x in vars(state).values() if isinstance(x, torch.Tensor))
    assert held == state_bytes(implementation, problem, problem.seqlen_k)
    shape = (problem.batch, problem.num_heads, problem.seqlen_q, problem.head_dim_v)
    out = torch.full(shape, torch.nan, dtype=inputs["q"].dtype)
    starts = [0] * problem.batch
    for chunk in plan:
        pieces: dict[str, Any] = {}
        for which in ("q", "k", "v"):
            whole = inputs[which]
            # Padding hides NaN in keys and values. Queries there are computed, so they must be numbers:
            # PyTorch's bfloat16 product of an odd number of terms takes 0 · the first of the row behind.
            filling = 9.0 if which == "q" else torch.nan
            piece = whole.new_full((*whole.shape[:2], chunk.size, whole.shape[3]), filling)
            for b, count in enumerate(chunk.added):
                piece[b, :, :count] = whole[b, :, starts[b] : starts[b] + count]
            pieces[which] = piece
        lengths = None if set(chunk.added) == {chunk.size} else chunk.added
        asked = problem.replace(seqlen_q=chunk.size, seqlen_k=chunk.size, key_lengths=lengths)
        result, state = extend(implementation, state, **pieces, problem=asked)
        for b, count in enumerate(chunk.added):
            out[b, :, starts[b] : starts[b] + count] = result.out[b, :, :count]
            starts[b] += count
        assert state.lengths == tuple(starts)
    return out


@lru_cache(maxsize=64)
def drawn(problem: Problem) -> dict[str, torch.Tensor]:
    return make_inputs(problem, seed=3)


def assert_equals_one_pass(name: str, mask: Mask, dtype: str, plan: tuple[Chunk, ...]) -> None:
    problem = decodable(name, mask, dtype)
    inputs = drawn(problem)
    found = decode(name, problem, inputs, plan)
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    if dtype in TOLERANCES:
        whole = IMPLEMENTATIONS[name].attention(q, k, v, problem=problem).out
        torch.testing.assert_close(found, whole, rtol=0, atol=TOLERANCES[dtype])
    semantics = IMPLEMENTATIONS[name].semantics
    exact, plain = (of(semantics, q, k, v, problem=problem).out for of in (truth, baseline))
    assert grade(found, exact, plain).verdict == "ok"


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_pieces_give_what_one_pass_gives(dtype, plan):
    names = tuple(name for name in IMPLEMENTATIONS if name != "triton-flash")
    pairs = supported(dtype, names)
    assert {name for name, _ in pairs} >= {"naive", "sdpa", "sliding-window", "linear"}
    for name, mask in pairs:
        assert_equals_one_pass(name, mask, dtype, PLANS[plan])


@pytest.mark.parametrize(
    ("mask", "dtype", "plan"),
    [
        (Causal(), "float32", "prefill"),
        (SlidingWindow(5), "float16", "chunks"),
        (SlidingWindow(5), "float32", "ragged"),
        (Causal(), "float32", "ragged"),
    ],
    ids=str,
)
def test_the_kernel_does_too(mask, dtype, plan):
    assert_equals_one_pass("triton-flash", mask, dtype, PLANS[plan])


@st.composite
def plans(draw: st.DrawFn) -> tuple[Chunk, ...]:
    """Up to six chunks, and one more with what rows still lack."""
    starts, found = [0, 0, 0], []
    for size, *added in draw(st.lists(st.tuples(*[st.integers(0, 9)] * 4), max_size=6)):
        if added[0] % 2:
            added = [size] * 3
        added = [min(count, size, TOTAL - start) for count, start in zip(added, starts, strict=True)]
        starts = [start + count for start, count in zip(starts, added, strict=True)]
        found.append(Chunk(size, tuple(added)))
    rest = [TOTAL - start for start in starts]
    return (*found, Chunk(max(rest), tuple(rest)))


@given(
    name=st.sampled_from(["naive", "sliding-window", "linear"]),
    window_size=st.integers(1, TOTAL + 1),
    kv_heads=st.sampled_from([1, 2, 4]),
    plan=plans(),
)
def test_any_plan_gives_what_one_pass_gives(name, window_size, kv_heads, plan):
    mask = Causal() if name == "linear" else SlidingWindow(window_size)
    problem = problem_of(mask, "float64", num_kv_heads=kv_heads, head_dim=3, head_dim_v=5)
    inputs = drawn(problem)
    found = decode(name, problem, inputs, plan)
    whole = IMPLEMENTATIONS[name].attention(inputs["q"], inputs["k"], inputs["v"], problem=problem).out
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["naive", "sdpa", "triton-flash", "sliding-window", "linear"])
def test_the_state_of_a_window_and_of_linear_attention_is_constant_in_the_context(name):
    implementation = IMPLEMENTATIONS[name]
    mask = Causal() if name == "linear" else SlidingWindow(64)
    sizes = {n: state_bytes(implementation, problem_of(mask, "float16"), n) for n in (64, 4096, 1 << 17)}
    assert len(set(sizes.values())) == 1
    if name != "linear":
        assert sizes[64] == 3 * 2 * 64 * (16 + 8) * 2
        causal = state_bytes(IMPLEMENTATIONS["naive"], problem_of(Causal(), "float16"), 1 << 17)
        assert causal == sizes[64] * (1 << 17) // 64
    else:
        assert sizes[64] == 3 * 2 * 16 * (8 + 1) * 4


@pytest.mark.parametrize("plan", ["chunks", "ragged"])
@pytest.mark.parametrize("name", ["naive", "sliding-window", "linear"])
def test_fake_tensors_take_the_same_way(name, plan):
    implementation = IMPLEMENTATIONS[name]
    problem = problem_of(Causal() if name == "linear" else SlidingWindow(5), "float32")
    with FakeTensorMode(), OperandBytes() as fake:
        step_through(implementation, problem, PLANS[plan])
    with OperandBytes() as real:
        step_through(implementation, problem, PLANS[plan])
    assert fake.total_bytes == real.total_bytes > 0


def step_through(implementation: Implementation, problem: Problem, plan: tuple[Chunk, ...]) -> None:
    state = new_state(implementation, problem, TOTAL)
    for chunk in plan:
        q, k, v = (torch.zeros(3, heads, chunk.size, width) for heads, width in ((4, 16), (2, 16), (2, 8)))
        asked = problem.replace(seqlen_q=chunk.size, seqlen_k=chunk.size, key_lengths=chunk.added)
        _, state = extend(implementation, state, q, k, v, problem=asked)
    assert state.lengths == (TOTAL,) * 3
