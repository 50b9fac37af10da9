"""Faults that public bug reports describe of kernels, with the right value: strides, ends, empty problems,
64-bit offsets. Backward passes included.
"""

import math
import mmap
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem

NAMES = ("naive", "sdpa", "triton-flash", "sliding-window")
EXACT = ("naive", "triton-flash", "sliding-window")
"""sdpa picks another kernel for other strides, and with it other roundings."""
SMALL_TILES = {"block_q": 32, "block_k": 32}
UNCOMMITTED = 0x4000
"""MAP_NORESERVE on Linux, which Python names from 3.13 on: pages that nobody touches cost nothing."""


def attend(name: str, inputs: Sequence[Tensor], mask: Mask, **fields: Any) -> AttentionOutput:
    """Attend with tiles so small that 33 tokens have several, and one with a tail."""
    q, k, v = inputs
    if name == "sliding-window" and not isinstance(mask, SlidingWindow):
        mask = SlidingWindow(1 << 20, causal=isinstance(mask, Causal))
    problem = Problem(
        batch=q.shape[0],
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        seqlen_q=q.shape[2],
        seqlen_k=k.shape[2],
        head_dim=q.shape[3],
        head_dim_v=v.shape[3],
        dtype=str(q.dtype).removeprefix("torch."),
        mask=mask,
        mode="fwd_bwd" if q.requires_grad else "fwd",
        options=SMALL_TILES if name == "triton-flash" else {},
        **fields,
    )
    return get_implementation(name).attention(q, k, v, problem=problem)


def leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x.detach().requires_grad_() for x in tensors]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


UPSTREAM = {
    "stride 0": torch.ones(1).expand(1, 2, 33, 16),
    "transposed": draw(1, 33, 2, 16).transpose(1, 2),
    "slice": draw(1, 2, 33, 40)[..., 5:21],
    "columns": draw(1, 2, 16, 33).transpose(2, 3),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("upstream", UPSTREAM.values(), ids=UPSTREAM)
def test_a09_no_stride_changes_a_bit_of_a_gradient(name: str, upstream: Tensor) -> None:
    """Dao-AILab/flash-attention#355, fla-org/flash-linear-attention#1138: strides of one tensor were taken
    for those of another, or for 1.
    """
    packed = draw(1, 33, 2, 48, seed=1).transpose(1, 2)
    views, copies = leaves(packed.chunk(3, dim=-1)), leaves([x.contiguous() for x in packed.chunk(3, dim=-1)])
    out, expected = (attend(name, inputs, Causal()).out for inputs in (views, copies))
    assert torch.equal(out, expected)
    found = torch.autograd.grad(out, views, upstream)
    wanted = torch.autograd.grad(expected, copies, upstream.contiguous())
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", EXACT)
def test_a09_expanded_heads_receive_the_sum_of_their_copies(name: str) -> None:
    q, k, v = leaves([draw(1, 3, 33, 16), draw(1, 1, 33, 16, seed=1), draw(1, 1, 33, 16, seed=2)])
    attend(name, (q, *(x.expand(1, 3, 33, 16) for x in (k, v))), Causal()).out.sum().backward()
    copies = leaves([x.detach().repeat(1, 3, 1, 1) for x in (k, v)])
    attend(name, (q.detach().requires_grad_(), *copies), Causal()).out.sum().backward()
    for shared, spread in zip((k, v), copies, strict=True):
        assert torch.equal(shared.grad, spread.grad.sum(1, keepdim=True))


def carved(value: float, seqlen: int, width: int) -> Tensor:
    """A constant in the middle of a buffer of NaN, so that whatever is read beyond the ends shows."""
    buffer = torch.full((3, 3, seqlen + 80, width + 24), math.nan)
    inner = buffer[1:2, 1:2, 40 : 40 + seqlen, 8 : 8 + width]
    inner.fill_(value)
    return inner


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seqlen_k", [8, 16, 33])
@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("width", [16, 24])
def test_a13_nothing_beyond_the_ends_reaches_a_gradient(
    name: str, seqlen_k: int, extra: int, width: int
) -> None:
    """openxla/tokamax#316: the backward pass read past the last row. Of ones: out 1, dq and dk 0, and each
    value serves Lq / Lk queries.
    """
    seqlen_q = seqlen_k + extra
    inputs = leaves([carved(1, n, width) for n in (seqlen_q, seqlen_k, seqlen_k)])
    out = attend(name, inputs, Full()).out
    torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=1e-6)
    dq, dk, dv = torch.autograd.grad(out, inputs, carved(1, seqlen_q, width))
    torch.testing.assert_close(dq, torch.zeros_like(dq), rtol=0, atol=2e-6)
    torch.testing.assert_close(dk, torch.zeros_like(dk), rtol=0, atol=2e-5)
    torch.testing.assert_close(dv, torch.full_like(dv, seqlen_q / seqlen_k), rtol=1e-6, atol=0)


EMPTY = {"no queries": (0, 4, 1), "no keys": (3, 0, 1), "no batch": (3, 3, 0)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), EMPTY.values(), ids=EMPTY)
def test_a15_empty_problems_have_gradients_of_zeros(
    name: str, seqlen_q: int, seqlen_k: int, batch: int
) -> None:
    """Dao-AILab/flash-attention PR#2776: they crashed, or had None for a gradient."""
    inputs = leaves([draw(batch, 2, n, 16) for n in (seqlen_q, seqlen_k, seqlen_k)])
    out, lse = attend(name, inputs, Full())
    assert torch.equal(out, torch.zeros(batch, 2, seqlen_q, 16))
    assert lse is None or torch.equal(lse, torch.full((batch, 2, seqlen_q), -math.inf))
    for gradient, leaf in zip(torch.autograd.grad(out, inputs, torch.ones_like(out)), inputs, strict=True):
        assert torch.equal(gradient, torch.zeros_like(leaf))


@pytest.mark.parametrize("name", NAMES)
def test_a15_a_row_whose_keys_all_lie_behind_its_length_is_such_a_problem(name: str) -> None:
    inputs = leaves([draw(2, 2, 20, 16, seed=seed) for seed in range(3)])
    out = attend(name, inputs, Full(), key_lengths=(0, 20)).out
    gradients = torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert not out[0].any()
    assert out[1].all()
    assert not any(gradient[0].any() for gradient in gradients)
    assert gradients[2][1].all()


@pytest.mark.usefixtures("checked_integers")
def test_a17_offsets_beyond_32_bits_in_both_passes() -> None:
    """fla-org/flash-linear-attention#1080: row 319 at a stride of 7,864,320 is element 2,508,718,080, which
    32 bits hold as -1,786,249,216.
    """
    rows, stride, width = 320, 7_864_320, 16
    assert 319 * stride == 2_508_718_080 > 2**31
    mapped = mmap.mmap(-1, 2 * rows * stride, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | UNCOMMITTED)
    buffer = torch.frombuffer(mapped, dtype=torch.float16)
    wide = buffer.as_strided((1, 1, rows, width), (rows * stride, rows * stride, stride, 1))
    wide.copy_(draw(1, 1, rows, width))
    last = slice(304, 320)
    near = wide.contiguous()
    results = []
    for whole in (wide, near):
        inputs = leaves([whole[:, :, last], whole, whole])
        out = attend("triton-flash", inputs, SlidingWindow(20)).out
        results.append((out, *torch.autograd.grad(out, inputs, whole[:, :, last])))
    for far, close in zip(*results, strict=True):
        assert close.any()
        assert torch.equal(far, close)
