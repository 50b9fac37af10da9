"""The tiled kernels against float64 truth, forward and backward: every pair of the properties that matter.

Small tiles, so that short sequences have all kinds of them: full, edges on both sides, tails, hidden.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.measure.agreement import grade_outputs
from attnbench.measure.record import Agreement
from tests.implementations.conformance import inputs_for, run, yardstick_for

FLASH = get_implementation("triton-flash")


def columns(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def packed(x: Tensor) -> Tensor:
    """A slice of something wider and longer that holds NaN."""
    batch, heads, seqlen, width = x.shape
    surroundings = x.new_full((batch, seqlen + 3, heads, width + 8), float("nan"))
    inside = surroundings[:, 1 : 1 + seqlen, :, :width].transpose(1, 2)
    return inside.copy_(x)


LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "columns": columns,
    "packed": packed,
}
AXES: Mapping[str, Sequence[Any]] = {
    "mask": (Full(), Causal(), SlidingWindow(20), SlidingWindow(9, causal=False)),
    "heads": ((1, 1), (4, 2)),
    "seqlens": ((64, 64), (50, 50), (1, 70), (33, 90), (90, 33), (70, 1)),
    "widths": (
        (16, 16),
        (64, 64),
        (80, 80),
        (96, 96),
        (128, 128),
        (192, 192),
        (256, 256),
        (40, 24),
        (8, 112),
    ),
    "keys": (None, (0, 1), (0.4, 1), (1, 0.7)),
    "layout": tuple(LAYOUTS),
    "dtype": ("float32", "float16"),
    "blocks": ((16, 32), (32, 16)),
}


def covering(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield few choices in which every two values of every two axes meet."""
    names = list(axes)
    open_pairs = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(axes[a]))
        for j in range(len(axes[b]))
    }
    while open_pairs:
        first, second = min(open_pairs)
        chosen = dict((first, second))
        for name in names:
            if name not in chosen:
                chosen[name] = max(
                    range(len(axes[name])),
                    key=lambda i: (len(_met({**chosen, name: i}, names) & open_pairs), -i),
                )
        open_pairs -= _met(chosen, names)
        yield {name: axes[name][index] for name, index in chosen.items()}


def _met(chosen: Mapping[str, int], names: Sequence[str]) -> set[Any]:
    have = [(name, chosen[name]) for name in names if name in chosen]
    return set(itertools.combinations(have, 2))


def name_of(choice: Mapping[str, Any]) -> str:
    return "-".join(getattr(value, "slug", None) or str(value).replace(" ", "") for value in choice.values())


def problem_of(choice: Mapping[str, Any], **more: Any) -> Problem:
    (num_heads, num_kv_heads), (seqlen_q, seqlen_k) = choice["heads"], choice["seqlens"]
    keys = choice["keys"]
    return Problem(
        batch=1 if keys is None else 2,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        head_dim=choice["widths"][0],
        head_dim_v=choice["widths"][1],
        key_lengths=None if keys is None else tuple(int(part * seqlen_k) for part in keys),
        mask=choice["mask"],
        dtype=choice["dtype"],
        mode="fwd_bwd",
        options={"block_q": choice["blocks"][0], "block_k": choice["blocks"][1], "return_lse": True},
        **more,
    )


def graded(problem: Problem, layout: str) -> Agreement:
    inputs = {name: LAYOUTS[layout](x) for name, x in inputs_for(problem.replace(options={})).items()}
    result, gradients = run(FLASH, problem, inputs)
    yardstick = yardstick_for(FLASH.semantics, problem)
    return grade_outputs(
        result.out,
        result.lse,
        gradients,
        yardstick.truth,
        yardstick.plain,
        dtype=inputs["q"].dtype,
        bounds=yardstick.bounds,
        lse_expected=True,
    )


def short_first(choices: Iterator[dict[str, Any]]) -> Iterator[Any]:
    """Yield all as parameters; what has no value that is new is for the long set."""
    seen: set[tuple[str, str]] = set()
    for choice in choices:
        values = {(name, str(value)) for name, value in choice.items()}
        yield pytest.param(choice, id=name_of(choice), marks=[pytest.mark.long] if values <= seen else [])
        seen |= values


@pytest.mark.parametrize("choice", list(short_first(covering(AXES))))
def test_every_pair_of_properties_is_within_budget(choice):
    agreement = graded(problem_of(choice), choice["layout"])
    assert set(agreement.gradients) == {"dq", "dk", "dv"}
    assert agreement.verdict == "ok", agreement


@pytest.mark.long
@pytest.mark.parametrize("dtype", AXES["dtype"])
@pytest.mark.parametrize("seqlens", AXES["seqlens"], ids=str)
@pytest.mark.parametrize("mask", AXES["mask"], ids=lambda mask: mask.slug)
def test_every_three_of_masks_lengths_types_and_widths_are_within_budget(mask, seqlens, dtype):
    """Along each of them the types take turns."""
    given = {"mask": mask, "seqlens": seqlens, "dtype": dtype}
    turn = sum(AXES[name].index(value) for name, value in given.items())
    for widths in AXES["widths"][turn % 2 :: 2]:
        choice = {**given, "widths": widths, "heads": (2, 1), "keys": None, "blocks": (16, 32)}
        assert graded(problem_of(choice), "contiguous").verdict == "ok", widths


masks: st.SearchStrategy[Mask] = st.one_of(
    st.just(Full()), st.just(Causal()), st.builds(SlidingWindow, st.integers(1, 80), causal=st.booleans())
)


HEADS = ((1, 1, 1), (2, 1, 2), (1, 2, 2), (2, 2, 1))
"""Batch, key/value heads, query heads of each: every two of them together."""
LONGEST = 48
"""Three of the smallest tiles: a first, an inner and a last one."""


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, str]:
    batch, kv_heads, group_size = draw(st.sampled_from(HEADS))
    seqlen_q, seqlen_k = draw(st.integers(1, LONGEST)), draw(st.integers(1, LONGEST))
    some_starts = st.one_of(st.none(), st.tuples(*[st.integers(-40, 80)] * batch))
    some_lengths = st.one_of(st.none(), st.tuples(*[st.integers(0, seqlen_k)] * batch))
    problem = Problem(
        batch=batch,
        num_heads=kv_heads * group_size,
        num_kv_heads=kv_heads,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        head_dim=8 * draw(st.integers(1, 12)),
        head_dim_v=8 * draw(st.integers(1, 12)),
        mask=draw(masks),
        scale=draw(st.sampled_from([None, 0.5, -0.25])),
        key_lengths=draw(some_lengths),
        query_start=draw(some_starts),
        dtype=draw(st.sampled_from(AXES["dtype"])),
        mode="fwd_bwd",
        options={"block_q": draw(st.sampled_from([16, 32])), "block_k": draw(st.sampled_from([16, 32]))},
    )
    return problem, draw(st.sampled_from(list(LAYOUTS)))


@pytest.mark.long
@given(problems())
def test_any_problem_is_within_budget(drawn):
    problem, layout = drawn
    agreement = graded(problem, layout)
    assert agreement.verdict == "ok", agreement
