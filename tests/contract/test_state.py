"""Decoding state.

Chunks appended one after the other give what one pass gives, and never read what is not filled.
"""

import pytest
import torch

from attnbench.contract.discovery import find_implementations
from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.state import KeyValueCache, extend, new_state, state_bytes
from attnbench.measure.inputs import make_inputs

FIVE = ("naive", "sdpa", "triton-flash", "sliding-window", "linear")


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("pieces", [(1,) * 5 + (12,), (12, 1, 1, 3), (17,)], ids=str)
def test_pieces_give_what_one_pass_gives(name: str, pieces: tuple[int, ...]) -> None:
    implementation = find_implementations()[name]
    mask = SlidingWindow(6) if name == "sliding-window" else Causal()
    problem = Problem(seqlen_q=17, batch=2, num_heads=4, num_kv_heads=2, head_dim=16, mask=mask)
    inputs = make_inputs(problem, seed=0)
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    whole = implementation.attention(q, k, v, problem=problem).out
    state = new_state(implementation, problem, 32)
    if isinstance(state, KeyValueCache):
        state.k.fill_(float("nan"))
        state.v.fill_(float("nan"))
    outs, start = [], 0
    for size in pieces:
        chunk = slice(start, start + size)
        result, state = extend(
            implementation, state, q[:, :, chunk], k[:, :, chunk], v[:, :, chunk], problem=problem
        )
        outs.append(result.out)
        start += size
    torch.testing.assert_close(torch.cat(outs, dim=2), whole, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", FIVE)
def test_the_bytes_of_a_state_are_those_of_its_tensors(name: str) -> None:
    implementation = find_implementations()[name]
    mask = SlidingWindow(6) if name == "sliding-window" else Causal()
    problem = Problem(
        seqlen_q=1,
        batch=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        head_dim_v=8,
        mask=mask,
        dtype="float16",
    )
    state = new_state(implementation, problem, 32)
    tensors = [value for value in vars(state).values() if isinstance(value, torch.Tensor)]
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert held == state_bytes(implementation, problem, 32) > 0


def test_a_full_cache_refuses_more() -> None:
    naive = find_implementations()["naive"]
    problem = Problem(seqlen_q=5, num_heads=1, head_dim=8)
    inputs = make_inputs(problem, seed=0)
    state = new_state(naive, problem, 4)
    with pytest.raises(UsageError, match="the cache holds 4 positions, 5 are needed"):
        extend(naive, state, inputs["q"], inputs["k"], inputs["v"], problem=problem)
