"""What is special about a window: edges of the band, what lies outside, empty inputs, lse's gradient."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnbench.contract.discovery import get_implementation
from attnbench.contract.evaluation import definition, truth
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.measure.inputs import make_inputs

WINDOW = get_implementation("sliding-window")
NAIVE = get_implementation("naive")
DIM, VALUE_DIM = 8, 6


def tensors(problem: Problem, *, gradients: bool = False) -> list[Tensor]:
    p, dtype = problem, getattr(torch, problem.dtype)
    generator = torch.Generator().manual_seed(3)
    shapes = (
        (p.batch, p.num_heads, p.seqlen_q, p.head_dim),
        (p.batch, p.num_kv_heads, p.seqlen_k, p.head_dim),
        (p.batch, p.num_kv_heads, p.seqlen_k, p.head_dim_v),
    )
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_(gradients) for shape in shapes]


def window_problem(seqlen_q: int, window_size: int, *, causal: bool = True, **more: Any) -> Problem:
    shape: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": DIM, "head_dim_v": VALUE_DIM}
    mask = SlidingWindow(window_size, causal=causal)
    return Problem(**{**shape, "dtype": "float64", **more}, seqlen_q=seqlen_q, mask=mask)


def assert_true(problem: Problem, tolerance: float = 1e-12) -> None:
    """out, lse and gradients equal the definition in float64."""
    p = problem.replace(options={"return_lse": True}, mode="fwd_bwd")
    inputs = tensors(p, gradients=True)
    out, lse = WINDOW.attention(*inputs, problem=p)
    grad_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(4), dtype=out.dtype)
    gradients = torch.autograd.grad(out, inputs, grad_out)
    expected = truth(SOFTMAX, *inputs, problem=p, grad_out=grad_out)
    assert lse is not None
    assert expected.lse is not None
    torch.testing.assert_close(lse, expected.lse, rtol=tolerance, atol=tolerance)
    wanted = (expected.out, expected.dq, expected.dk, expected.dv)
    for got, want in zip((out, *gradients), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    batch, seqlen_q, seqlen_k = draw(st.integers(1, 3)), draw(st.integers(0, 140)), draw(st.integers(0, 140))
    window_size, causal = draw(st.integers(1, 160)), draw(st.booleans())
    more: dict[str, Any] = {
        "batch": batch,
        "seqlen_k": seqlen_k,
        "num_kv_heads": draw(st.sampled_from([1, 2, 4])),
    }
    if draw(st.booleans()):
        more["key_lengths"] = tuple(draw(st.integers(0, seqlen_k)) for _ in range(batch))
    if draw(st.booleans()):
        more["query_start"] = tuple(draw(st.integers(-50, 200)) for _ in range(batch))
    return window_problem(seqlen_q, window_size, causal=causal, **more)


@given(problems())
def test_any_geometry_equals_the_definition(problem: Problem) -> None:
    assert_true(problem)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window_size", [1, 2, 31, 32, 33, 63, 64, 65, 96])
def test_windows_at_the_edges_of_a_block(window_size: int, causal: bool) -> None:
    for seqlen in (32, 33, 96, 97):
        assert_true(window_problem(seqlen, window_size, causal=causal))


def test_a_window_of_the_whole_sequence_is_causal_attention() -> None:
    problem = window_problem(150, 150)
    inputs = tensors(problem)
    causal = NAIVE.attention(*inputs, problem=problem.replace(mask=Causal())).out
    for window_size in (150, 151, 10_000):
        mask = SlidingWindow(window_size)
        windowed = WINDOW.attention(*inputs, problem=problem.replace(mask=mask)).out
        torch.testing.assert_close(windowed, causal, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("seqlen", [1, 5, 40, 100])
def test_a_window_of_one_returns_v_and_its_gradient(seqlen: int, causal: bool) -> None:
    problem = window_problem(seqlen, 1, causal=causal, dtype="float32", num_kv_heads=4)
    q, k, v = tensors(problem, gradients=True)
    out = WINDOW.attention(q, k, v, problem=problem).out
    grad_out = torch.randn_like(out)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), grad_out)
    assert torch.equal(out, v)
    assert torch.equal(dv, grad_out)
    assert not dq.any()
    assert not dk.any()


def test_gradcheck() -> None:
    problem = window_problem(9, 4, batch=2, seqlen_k=12, key_lengths=(12, 7))
    assert torch.autograd.gradcheck(
        lambda q, k, v: WINDOW.attention(q, k, v, problem=problem).out,
        tensors(problem, gradients=True),
        fast_mode=True,
    )


def test_lse_has_a_gradient():
    """Of a loss that takes out and lse, and of one that takes lse alone; rows without keys add nothing."""
    problem = Problem(
        seqlen_q=40,
        batch=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        mask=SlidingWindow(9),
        key_lengths=(0, 31),
        query_start=(-9, 3),
        mode="fwd_bwd",
        options={"return_lse": True},
    )
    inputs = make_inputs(problem, seed=0)
    weight = torch.randn(2, 4, 40, generator=torch.Generator().manual_seed(1))
    for of_out in (1.0, 0.0):
        found = []
        for wide in (False, True):
            leaves = [(inputs[n].double() if wide else inputs[n]).detach().requires_grad_() for n in "qkv"]
            if wide:
                out, lse = definition(SOFTMAX, *leaves, problem=problem.replace(dtype="float64"))
            else:
                out, lse = WINDOW.attention(*leaves, problem=problem)
            assert lse is not None
            seen = lse[lse.isfinite()]
            loss = (seen * weight[lse.isfinite()]).sum() + of_out * (out * inputs["grad_out"]).sum()
            found.append(torch.autograd.grad(loss, leaves, allow_unused=True))
        for one, other in zip(*found, strict=True):
            expected = torch.zeros_like(one) if other is None else other.float()
            torch.testing.assert_close(one, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("seqlen_k", [8, 16, 33])
@pytest.mark.parametrize("more", [0, 1])
def test_nothing_outside_the_tensors_is_read(seqlen_k: int, more: int) -> None:
    seqlen_q = seqlen_k + more
    problem = Problem(
        seqlen_q=seqlen_q, seqlen_k=seqlen_k, num_heads=2, head_dim=8, mask=SlidingWindow(200, causal=False)
    )

    def carved(seqlen: int) -> Tensor:
        surroundings = torch.full((1, 2, seqlen + 80, 8), torch.nan)
        surroundings[:, :, 40 : 40 + seqlen] = 1
        return surroundings[:, :, 40 : 40 + seqlen].requires_grad_()

    q, k, v = (carved(seqlen) for seqlen in (seqlen_q, seqlen_k, seqlen_k))
    out = WINDOW.attention(q, k, v, problem=problem).out
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    torch.testing.assert_close(out, torch.ones_like(out))
    torch.testing.assert_close(dv, torch.full_like(dv, seqlen_q / seqlen_k))
    for gradient in (dq, dk):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), [(0, 4, 1), (3, 0, 1), (3, 3, 0)])
def test_empty_inputs_give_zeros_and_not_none(seqlen_q: int, seqlen_k: int, batch: int) -> None:
    problem = window_problem(seqlen_q, 2, seqlen_k=seqlen_k, batch=batch, options={"return_lse": True})
    inputs = tensors(problem, gradients=True)
    out, lse = WINDOW.attention(*inputs, problem=problem)
    assert out.shape == (batch, 4, seqlen_q, VALUE_DIM)
    assert not out.any()
    assert lse is not None
    assert tuple(lse.shape) == (batch, 4, seqlen_q)
    assert (lse == -torch.inf).all()
    for gradient in torch.autograd.grad(out.sum(), inputs):
        assert not gradient.any()


def test_heads_of_width_zero_average_the_window() -> None:
    problem = window_problem(5, 2, head_dim=0, num_kv_heads=4)
    q, k, v = tensors(problem)
    out = WINDOW.attention(q, k, v, problem=problem).out
    torch.testing.assert_close(out[:, :, 1:], (v[:, :, 1:] + v[:, :, :-1]) / 2)


def test_scores_beyond_float16_do_not_overflow() -> None:
    problem = Problem(seqlen_q=40, num_heads=1, dtype="float16", mask=SlidingWindow(8))
    q = k = torch.full((1, 1, 40, 64), 64.0, dtype=torch.float16)
    v = torch.randn(1, 1, 40, 64, generator=torch.Generator().manual_seed(0)).half()
    out = WINDOW.attention(q, k, v, problem=problem).out
    mean = torch.stack([v[0, 0, max(0, i - 7) : i + 1].float().mean(0) for i in range(40)])
    torch.testing.assert_close(out[0, 0].float(), mean, rtol=2e-3, atol=1e-3)
