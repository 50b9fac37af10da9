"""Faults that public bug reports describe, one test each with the right value, for every implementation
that the input concerns.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.contract.api import attend
from attnbench.contract.discovery import find_implementations
from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.contract.problem import Problem
from tests.implementations.conformance import uncompiled

SOFTMAX = [
    name
    for name, implementation in uncompiled().items()
    if implementation.semantics.name == "softmax"
    and not refusals(implementation, Problem(seqlen_q=8, mask=Full()))
]
EVERY = [
    name
    for name, implementation in uncompiled().items()
    if name == "sliding-window" or not refusals(implementation, Problem(seqlen_q=8))
]
FORCED_FLASH = "sdpa-flash"


def able(name: str, **shape: Any) -> bool:
    """Whether the implementation takes the shape; forced backends decline some, and say so."""
    return not refusals(find_implementations()[name], Problem(**shape))


def causal_for(name: str) -> Any:
    """The causal mask, as a window of everything for the implementation that has windows alone."""
    return SlidingWindow(1 << 20) if name == "sliding-window" else Causal()


@pytest.mark.parametrize("name", SOFTMAX)
@pytest.mark.parametrize("shift", [-6e4, 0.0, 6e4])
def test_a03_a_constant_on_all_logits_changes_nothing(name: str, shift: float) -> None:
    """flashinfer-ai/flashinfer#4267.

    A finite stand-in for -inf, here -5e4, made such rows zero without a warning.
    """
    width = 16
    q = torch.zeros(1, 1, 1, width)
    k = torch.zeros(1, 1, 2, width)
    q[..., 0] = 1.0
    k[0, 0, :, 0] = torch.tensor([shift, shift - 1])
    v = torch.zeros(1, 1, 2, width)
    v[0, 0, 0] = 1.0
    out, lse = attend(q, k, v, implementation=name, mask=Full(), scale=1.0)
    torch.testing.assert_close(out, torch.full_like(out, 1 / (1 + math.exp(-1))), rtol=0, atol=1e-5)
    if lse is not None:
        assert float(lse) == pytest.approx(shift + math.log1p(math.exp(-1)), abs=8e-3)


ALIGNED = [
    ((2, 5), [1.5, 2.0]),
    ((5, 2), [0.0, 0.0, 0.0, 0.0, 0.5]),
    ((1, 8), [3.5]),
]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("lengths", "expected"), ALIGNED, ids=str)
def test_a05_causal_is_bottom_right_everywhere(
    name: str, lengths: tuple[int, int], expected: list[float]
) -> None:
    """pytorch/pytorch#103082.

    Libraries align the diagonal top-left or bottom-right where the lengths differ.
    """
    seqlen_q, seqlen_k = lengths
    q, k = torch.zeros(1, 1, seqlen_q, 16), torch.zeros(1, 1, seqlen_k, 16)
    v = torch.arange(seqlen_k, dtype=torch.float32).view(1, 1, -1, 1).expand(1, 1, seqlen_k, 16)
    out = attend(q, k, v, implementation=name, mask=causal_for(name)).out
    torch.testing.assert_close(out[0, 0, :, 0], torch.tensor(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_a07_groups_of_query_heads_share_one_key_head(name: str) -> None:
    """onnx/onnx PR#7274: heads were tiled (0, 1, 0, 1) where they interleave (0, 0, 1, 1)."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 6, 16, generator=generator)
    k = torch.randn(1, 2, 6, 16, generator=generator)
    v = torch.arange(2, dtype=torch.float32).view(1, 2, 1, 1).expand(1, 2, 6, 16)
    out = attend(q, k, v, implementation=name, mask=causal_for(name)).out
    heads = torch.tensor([0.0, 0.0, 1.0, 1.0]).view(1, 4, 1, 1)
    torch.testing.assert_close(out, heads.expand_as(out), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="num_heads=4 is not divisible by num_kv_heads=3"):
        attend(
            q, torch.zeros(1, 3, 6, 16), torch.zeros(1, 3, 6, 16), implementation=name, mask=causal_for(name)
        )


@pytest.mark.parametrize("name", EVERY)
def test_a09_upstream_gradients_of_any_stride(name: str) -> None:
    """Dao-AILab/flash-attention#355: ``out.sum().backward()`` hands over a gradient of stride 0."""
    mask = causal_for(name)
    if not able(name, seqlen_q=33, num_heads=3, head_dim=16, mask=mask, mode="fwd_bwd"):
        pytest.skip(f"{name} has no backward pass")
    generator = torch.Generator().manual_seed(1)
    packed = torch.randn(2, 33, 3, 48, generator=generator)
    views = [x.transpose(1, 2).detach().requires_grad_() for x in packed.chunk(3, dim=-1)]
    copies = [x.detach().contiguous().requires_grad_() for x in views]
    wide = torch.randn(2, 3, 33, 32, generator=generator)
    upstream = {
        "stride 0": torch.ones(1).expand(2, 3, 33, 16),
        "transposed": torch.randn(2, 33, 3, 16, generator=generator).transpose(1, 2),
        "slice": wide[..., 3:19],
    }
    for given in upstream.values():
        out_of_views = attend(*views, implementation=name, mask=mask).out
        out_of_copies = attend(*copies, implementation=name, mask=mask).out
        torch.testing.assert_close(out_of_views, out_of_copies, rtol=2e-6, atol=2e-6)
        found = torch.autograd.grad(out_of_views, views, given)
        wanted = torch.autograd.grad(out_of_copies, copies, given.contiguous())
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("name", EVERY)
def test_a09_expanded_heads_receive_the_summed_gradient(name: str) -> None:
    mask = causal_for(name)
    if not able(name, seqlen_q=33, num_heads=3, head_dim=16, mask=mask, mode="fwd_bwd"):
        pytest.skip(f"{name} has no backward pass")
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(1, 3, 33, 16, generator=generator)
    one_k, one_v = (torch.randn(1, 1, 33, 16, generator=generator).requires_grad_() for _ in range(2))
    attend(
        q, one_k.expand(1, 3, 33, 16), one_v.expand(1, 3, 33, 16), implementation=name, mask=mask
    ).out.sum().backward()
    grouped_k, grouped_v = (x.detach().clone().requires_grad_() for x in (one_k, one_v))
    attend(q, grouped_k, grouped_v, implementation=name, mask=mask).out.sum().backward()
    torch.testing.assert_close(one_k.grad, grouped_k.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one_v.grad, grouped_v.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SOFTMAX)
def test_a11_float16_logits_that_overflow_before_scaling(name: str) -> None:
    """PaddlePaddle/Paddle PR#41933: the raw dot 262144 is above 65504, the scaled logit 32768 is not."""
    q = torch.full((1, 1, 4, 64), 64.0, dtype=torch.float16)
    v = torch.randn(1, 1, 4, 64, generator=torch.Generator().manual_seed(0)).half()
    out = attend(q, q, v, implementation=name, mask=Full()).out
    assert torch.isfinite(out).all()
    torch.testing.assert_close(
        out, v.float().mean(dim=2, keepdim=True).half().expand_as(out), rtol=2e-3, atol=1e-3
    )


def carved(*shape: int) -> Tensor:
    """Ones in the middle of a larger buffer of NaN: what is read out of bounds shows."""
    buffer = torch.full((shape[0], shape[1], shape[2] + 300, shape[3] + 8), float("nan"))
    inner = buffer[:, :, 150 : 150 + shape[2], 4 : 4 + shape[3]]
    inner.fill_(1.0)
    return inner


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("seqlen_k", [8, 16, 33])
@pytest.mark.parametrize("more", [0, 1])
def test_a13_lengths_that_are_no_multiple_of_a_tile(name: str, seqlen_k: int, more: int) -> None:
    """openxla/tokamax#316: reads past the last row. All ones.

    Out 1, dq = dk = 0, dv the number of queries each value serves.
    """
    seqlen_q = seqlen_k + more
    mask = SlidingWindow(1 << 20, causal=False) if name == "sliding-window" else Full()
    q, k, v = carved(1, 1, seqlen_q, 16), carved(1, 1, seqlen_k, 16), carved(1, 1, seqlen_k, 16)
    differentiable = able(
        name, seqlen_q=seqlen_q, seqlen_k=seqlen_k, num_heads=1, head_dim=16, mask=mask, mode="fwd_bwd"
    )
    leaves = [x.detach().requires_grad_(differentiable) for x in (q, k, v)]
    out = attend(*leaves, implementation=name, mask=mask).out
    torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=1e-6)
    if differentiable:
        dq, dk, dv = torch.autograd.grad(out, leaves, torch.ones_like(out))
        torch.testing.assert_close(dq, torch.zeros_like(dq), rtol=0, atol=2e-6)
        torch.testing.assert_close(dk, torch.zeros_like(dk), rtol=0, atol=2e-5)
        torch.testing.assert_close(dv, torch.full_like(dv, seqlen_q / seqlen_k), rtol=1e-5, atol=0)


EMPTY = {
    "no queries": {"seqlen_q": 0, "seqlen_k": 4, "batch": 1},
    "no keys": {"seqlen_q": 3, "seqlen_k": 0, "batch": 1},
    "no batch": {"seqlen_q": 3, "seqlen_k": 3, "batch": 0},
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
def test_a15_empty_inputs_have_shapes_zeros_and_gradients(name: str, shape: dict[str, int]) -> None:
    """Dao-AILab/flash-attention PR#2776: no keys means out 0 and lse -inf; gradients are zeros, not None."""
    if name == FORCED_FLASH:
        pytest.skip("the forced flash backend takes no empty dimension and says so")
    mask = causal_for(name)
    batch, seqlen_q, seqlen_k = shape["batch"], shape["seqlen_q"], shape["seqlen_k"]
    differentiable = able(name, **shape, num_heads=2, head_dim=16, mask=mask, mode="fwd_bwd")
    q, k, v = (
        torch.randn(batch, 2, length, 16, requires_grad=differentiable)
        for length in (seqlen_q, seqlen_k, seqlen_k)
    )
    out, lse = attend(q, k, v, implementation=name, mask=mask)
    assert out.shape == (batch, 2, seqlen_q, 16)
    assert torch.equal(out, torch.zeros_like(out))
    if lse is not None:
        assert lse.shape == (batch, 2, seqlen_q)
        assert bool((lse == -math.inf).all())
    if differentiable:
        for gradient, leaf in zip(
            torch.autograd.grad(out.sum(), (q, k, v), allow_unused=True), (q, k, v), strict=True
        ):
            assert gradient is not None
            assert torch.equal(gradient, torch.zeros_like(leaf))


@pytest.mark.parametrize("name", SOFTMAX)
def test_a15_width_zero_is_the_mean_of_v(name: str) -> None:
    if not able(name, seqlen_q=3, head_dim=0, head_dim_v=8, num_heads=1):
        pytest.skip(f"{name} wants head_dim > 0 and says so")
    v = torch.randn(1, 1, 3, 8, generator=torch.Generator().manual_seed(0))
    out = attend(torch.zeros(1, 1, 3, 0), torch.zeros(1, 1, 3, 0), v, implementation=name, mask=Full()).out
    torch.testing.assert_close(out, v.mean(dim=2, keepdim=True).expand(1, 1, 3, 8), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", ["k", "v"])
def test_a29_garbage_in_a_masked_slot_stays_there(name: str, poison: float, which: str) -> None:
    """pytorch/pytorch#101967: 0 × NaN. Key 1 is hidden from both queries; the output is v[0]."""
    q, k, v = (torch.randn(1, 1, 2, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    {"k": k, "v": v}[which][0, 0, 1] = poison
    out = attend(q, k, v, implementation=name, mask=causal_for(name), key_lengths=(1,), query_start=0).out
    torch.testing.assert_close(out, v[:, :, :1].expand(1, 1, 2, 16), rtol=1e-6, atol=1e-6)
