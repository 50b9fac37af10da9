"""Problems: what they derive, what they need, and what they refuse."""

import re
from typing import Any

import numpy as np
import pytest

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.contract.problem import Problem


def test_defaults_follow_from_the_rest() -> None:
    problem = Problem(seqlen_q=8, num_heads=4, head_dim=16)
    assert (problem.seqlen_k, problem.num_kv_heads, problem.head_dim_v) == (8, 4, 16)
    assert problem.softmax_scale == 0.25
    assert problem.mask == Causal()
    assert hash(problem) == hash(Problem(seqlen_q=8, num_heads=4, head_dim=16))


def test_width_zero_has_scale_one() -> None:
    assert Problem(seqlen_q=3, head_dim=0, head_dim_v=8).softmax_scale == 1.0


def test_positions_default_to_bottom_right() -> None:
    assert Problem(seqlen_q=2, seqlen_k=16, batch=2).query_starts == (14, 14)
    assert Problem(seqlen_q=2, seqlen_k=16, query_start=6, batch=2).query_starts == (6, 6)
    ragged = Problem(seqlen_q=2, seqlen_k=16, query_start=[6, 3], key_lengths=[8, 5], batch=2)  # type: ignore[arg-type]
    assert (ragged.query_starts, ragged.key_limits) == ((6, 3), (8, 5))
    assert ragged.pairs() == 8 * ((7 + 8) + (4 + 5))


@pytest.mark.parametrize(
    ("changes", "need"),
    [
        ({"mode": "bwd"}, "backward"),
        ({"mode": "fwd_bwd"}, "backward"),
        ({"mode": "decode"}, "decode"),
        ({"num_kv_heads": 2}, "grouped-heads"),
        ({"head_dim_v": 8}, "value-dim"),
        ({"seqlen_k": 9}, "cross-lengths"),
        ({"key_lengths": (4,)}, "key-lengths"),
        ({"query_start": 0}, "query-start"),
        ({"scale": 1.0}, "scale"),
        ({"options": {"return_lse": True}}, "lse"),
        ({"mask": Full()}, "mask:full"),
        ({"mask": SlidingWindow(3)}, "mask:sliding-window"),
        ({"dtype": "bfloat16"}, "dtype:bfloat16"),
        ({"device": "cuda"}, "device:cuda"),
    ],
)
def test_every_feature_is_a_need(changes: dict[str, Any], need: str) -> None:
    plain = Problem(seqlen_q=8)
    assert need not in plain.needs()
    assert need in plain.replace(**changes).needs()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 4, "num_kv_heads": 3}, "num_heads=4 is not divisible by num_kv_heads=3"),
        ({"dtype": "float31"}, "unknown dtype 'float31' .did you mean 'float32'"),
        ({"mode": "fwdbwd"}, "unknown mode 'fwdbwd' .did you mean 'fwd_bwd'"),
        ({"scale": float("nan")}, "scale must be finite, not nan"),
        ({"scale": float("inf")}, "scale must be finite, not inf"),
        ({"scale": -1e39}, r"scale must be at most 1e\+38 either way, not -1e\+39"),
        ({"key_lengths": (1, 2)}, "key_lengths has 2 entries for a batch of 1"),
        ({"key_lengths": (9,)}, "within 0 and seqlen_k=8, not 9"),
        ({"query_start": (1, 2)}, "query_start has 2 entries for a batch of 1"),
        ({"seqlen_q": -2}, "seqlen_q must not be negative"),
        ({"num_heads": 0}, "num_heads must be at least 1"),
    ],
)
def test_what_cannot_be_is_a_value_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Problem(**{"seqlen_q": 8, **changes})
    assert isinstance(caught.value, ValueError)


def test_scale_zero_and_negative_are_used_as_given() -> None:
    assert Problem(seqlen_q=2, scale=0.0).softmax_scale == 0.0
    assert Problem(seqlen_q=2, scale=-2.0).softmax_scale == -2.0


def test_counts_of_the_largest_problem_take_no_memory() -> None:
    n, batch = 2**32, 2**24
    problem = Problem(seqlen_q=n, batch=batch, num_heads=n)
    assert problem.pairs() == batch * n * (n * (n + 1) // 2)
    assert problem.keys_seen() == problem.queries_seeing() == batch * n * n


def test_equal_batch_rows_are_counted_once_and_multiplied() -> None:
    lengths, starts = (5, 8, 5, 0), (1, -2, 1, 4)
    ragged = Problem(seqlen_q=3, seqlen_k=8, batch=4, num_heads=2, key_lengths=lengths, query_start=starts)
    rows = [
        Problem(seqlen_q=3, seqlen_k=8, num_heads=2, key_lengths=(length,), query_start=start)
        for length, start in zip(lengths, starts, strict=True)
    ]
    for count in (Problem.pairs, Problem.keys_seen, Problem.queries_seeing):
        assert count(ragged) == sum(count(row) for row in rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seqlen_q": 10**30}, "seqlen_q must be at most 4294967296, not 1000"),
        ({"batch": 2**33}, "batch must be at most 16777216, not"),
        ({"query_start": -(10**20)}, "query_start must be at most"),
        ({"seqlen_q": 8.0}, "seqlen_q must be a whole number, not 8.0"),
        ({"head_dim": True}, "head_dim must be a whole number, not True"),
        ({"key_lengths": 4}, "key_lengths must be a sequence of whole numbers, one per batch row, not 4"),
        ({"key_lengths": [4.5]}, "key_lengths must be a whole number, not 4.5"),
        ({"query_start": 1.5}, "query_start must be a whole number, not 1.5"),
        ({"scale": "0.5"}, "scale must be a finite number, not '0.5'"),
    ],
)
def test_numbers_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Problem(**({"seqlen_q": 8} | changes))


def test_numpy_s_whole_numbers_become_python_s() -> None:
    problem = Problem(seqlen_q=np.int64(8), batch=2, key_lengths=np.array([3, 4]), query_start=np.int32(1))  # type: ignore[arg-type]
    assert problem == Problem(seqlen_q=8, batch=2, key_lengths=(3, 4), query_start=1)
    assert type(problem.seqlen_q) is int
