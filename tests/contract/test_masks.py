"""Closed forms of masks against their predicates, and the parameters people get wrong."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import BandMask, Causal, Full, Mask, SlidingWindow, mask_from

BANDS: list[BandMask] = [Full(), Causal()]
BANDS += [SlidingWindow(size, causal=causal) for size in (1, 2, 5, 40) for causal in (True, False)]
NAMED = [pytest.param(mask, id=mask.slug) for mask in BANDS]


@pytest.mark.parametrize("mask", NAMED)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seqlen_q=st.integers(0, 40),
    seqlen_k=st.integers(0, 40),
    query_start=st.none() | st.integers(-30, 60),
    block_q=st.integers(1, 17),
    block_k=st.integers(1, 17),
)
def test_closed_forms_equal_enumeration(
    mask: BandMask, seqlen_q: int, seqlen_k: int, query_start: int | None, block_q: int, block_k: int
) -> None:
    shape = (seqlen_q, seqlen_k, query_start)
    assert mask.pairs(*shape) == Mask.pairs(mask, *shape)
    assert mask.tiles(block_q, block_k, *shape) == Mask.tiles(mask, block_q, block_k, *shape)
    np.testing.assert_array_equal(mask.keys_seen(*shape), Mask.keys_seen(mask, *shape))
    np.testing.assert_array_equal(mask.queries_seeing(*shape), Mask.queries_seeing(mask, *shape))
    assert mask.num_keys_seen(*shape) == Mask.num_keys_seen(mask, *shape)
    assert mask.num_queries_seeing(*shape) == Mask.num_queries_seeing(mask, *shape)
    for q_pos in range(-5, 45, 7):
        assert mask.row_intervals(q_pos, seqlen_k) == Mask.row_intervals(mask, q_pos, seqlen_k)


@pytest.mark.parametrize("mask", NAMED)
def test_enumeration_equals_the_definition_pair_by_pair(mask: BandMask) -> None:
    left, right = mask.bounds()
    expected = 0
    for row in range(9):
        for key in range(12):
            distance = key - (3 + row)
            expected += (left is None or distance >= -left) and (right is None or distance <= right)
    assert Mask.pairs(mask, 9, 12) == expected


def test_window_pairs_are_the_exact_trapezoid() -> None:
    # W·L - W(W-1)/2; half a window a row, or the full causal triangle, are both wrong.
    assert SlidingWindow(512).pairs(2048, 2048) == 917_760
    assert Causal().pairs(2048, 2048) == 2_098_176
    assert SlidingWindow(4096).pairs(2048, 2048) == 2_098_176
    assert SlidingWindow(1).pairs(2048, 2048) == 2048


def test_counting_a_million_tokens_needs_no_matrix() -> None:
    n = 1 << 20
    assert Causal().pairs(n, n) == n * (n + 1) // 2
    assert Causal().tiles(128, 128, n, n).visited == (n // 128) * (n // 128 + 1) // 2


def test_causal_is_aligned_bottom_right() -> None:
    assert Causal().row_intervals(3, 5) == ((0, 4),)
    assert Causal().pairs(2, 5) == 4 + 5
    assert Causal().pairs(5, 2) == 1 + 2
    assert Causal().pairs(1, 8) == 8


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_a_window_holds_at_least_one_key(size: object) -> None:
    with pytest.raises(UsageError, match="window_size must be a positive integer"):
        SlidingWindow(size)  # type: ignore[arg-type]


def test_masks_from_tables() -> None:
    for mask in BANDS:
        assert mask_from(mask.to_dict()) == mask
    assert mask_from("causal") == Causal()
    assert SlidingWindow(256).slug == "window256"
    assert SlidingWindow(256, causal=False).slug == "window256-bidirectional"


@dataclass(frozen=True)
class Worded(Mask):
    """A mask of another package, with parameters of every kind."""

    kind: Any
    other: Any = "x"
    name: ClassVar[str] = "worded"


def test_different_masks_have_different_slugs() -> None:
    kinds = ["A", "a", "1", 1, 1.0, True, "true", "a-otherx", "a b", "ä"]
    masks = [Worded(kind) for kind in kinds] + [Worded("a-otherb"), Worded("a", "b-otherx"), Worded("a", "b")]
    assert len({mask.slug for mask in masks}) == len(masks)
    assert Worded("A").slug == "worded-kindA-otherx"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("causl", "unknown mask 'causl' .did you mean 'causal'"),
        ({"name": "sliding-window", "window": 3}, "no parameter 'window' .did you mean 'window_size'"),
        ({"name": "sliding-window"}, "needs window_size, as { name = .* window_size = 256 }"),
        ({}, "unknown mask None"),
    ],
)
def test_mistakes_name_the_nearest(spec: str | dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mask_from(spec)


def test_tiles_are_counted_in_pieces_that_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SlidingWindow(30).tiles(16, 8, 250, 250)
    monkeypatch.setattr("attnbench.contract.bands.TILE_ROWS_AT_ONCE", 3)
    assert SlidingWindow(30).tiles(16, 8, 250, 250) == whole
