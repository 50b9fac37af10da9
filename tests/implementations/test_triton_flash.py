"""What is special to the tiled kernel: values of known faults, tile edges, strides, empty cases."""

import math
import mmap
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.contract.api import attend
from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.measure.interpreter import trace_kernels
from tests.implementations.conformance import graded

FLASH = get_implementation("triton-flash")
SMALL_TILES = {"block_q": 16, "block_k": 16}


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None, **given: Any) -> AttentionOutput:
    given.setdefault("options", SMALL_TILES)
    return attend(q, k, v, implementation=FLASH, mask=mask or Full(), **given)


def indices_as_values(seqlen_k: int) -> Tensor:
    return torch.arange(seqlen_k, dtype=torch.float32).view(1, 1, seqlen_k, 1).repeat(1, 1, 1, 16)


# A03 (flashinfer-ai/flashinfer#4267): no finite number may stand in for minus infinity.


def test_a_row_of_very_low_logits_keeps_its_weights():
    q, k, v = (torch.zeros(1, 1, n, 16) for n in (1, 2, 2))
    q[..., 0] = 1
    k[0, 0, :, 0] = torch.tensor([-60000.0, -60001.0])
    v[0, 0, :, 0] = torch.tensor([1.0, 0.0])
    out, lse = flash(q, k, v, scale=1.0)
    assert out[0, 0, 0, 0].item() == pytest.approx(1 / (1 + math.exp(-1)), abs=1e-6)
    assert lse is not None
    assert lse.item() == pytest.approx(-60000 + math.log1p(math.exp(-1)), rel=2e-7)


@pytest.mark.parametrize("mask", [Full(), Causal(), SlidingWindow(9)])
@pytest.mark.parametrize("shift", [-6e4, 6e4])
def test_a_constant_added_to_a_row_of_logits_changes_nothing(mask, shift):
    """Multiples of 1/128 stay exact next to 6e4 in float32, so only the kernel could lose them."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 40, 16, generator=generator) for _ in range(3))
    q[...], k[..., 1:] = 0, 0
    q[..., 0], q[..., 1] = 1, 1
    k[..., 0] = (k[..., 0] * 128).round() / 128
    plain = flash(q, k, v, mask, scale=1.0)
    k[..., 1] = shift
    moved = flash(q, k, v, mask, scale=1.0)
    assert torch.allclose(moved.out, plain.out, rtol=0, atol=2e-6)
    assert moved.lse is not None
    assert plain.lse is not None
    assert torch.allclose(moved.lse - shift, plain.lse, rtol=0, atol=0.01)


# A05: one alignment, bottom-right. A07: heads interleave. A11: no overflow before the scale.


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "expected"),
    [(2, 5, [1.5, 2]), (5, 2, [0, 0, 0, 0, 0.5]), (1, 8, [3.5])],
)
def test_causal_is_aligned_bottom_right(seqlen_q, seqlen_k, expected):
    zeros = torch.zeros(1, 1, max(seqlen_q, seqlen_k), 16)
    out, lse = flash(zeros[:, :, :seqlen_q], zeros[:, :, :seqlen_k], indices_as_values(seqlen_k), Causal())
    assert torch.equal(out[0, 0, :, 0], torch.tensor(expected, dtype=torch.float32))
    assert lse is not None
    seen = [max(0, seqlen_k - seqlen_q + row + 1) for row in range(seqlen_q)]
    logarithms = torch.tensor([math.log(count) if count else -math.inf for count in seen])
    assert torch.allclose(lse[0, 0], logarithms, rtol=0, atol=1e-6)


def test_query_heads_of_a_group_are_neighbours():
    q, k = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 5, 16)
    v = torch.arange(2.0).view(1, 2, 1, 1).expand(1, 2, 5, 16)
    out = flash(q, k, v).out
    assert torch.allclose(
        out, torch.tensor([0.0, 0, 1, 1]).view(1, 4, 1, 1).expand_as(out), rtol=0, atol=1e-6
    )
    with pytest.raises(ValueError, match="not divisible"):
        flash(torch.randn(1, 3, 5, 16), k, v)


def test_large_float16_products_do_not_overflow():
    q = k = torch.full((1, 1, 20, 64), 64.0, dtype=torch.float16)
    v = torch.randn(1, 1, 20, 64).half()
    out = flash(q, k, v).out
    assert torch.allclose(out.float(), v.float().mean(2, keepdim=True).expand_as(out), rtol=0, atol=1e-3)


# A09: strides. A13: nothing beyond the end is read. A17: offsets beyond 32 bits. A29: masked slots stay out.


def test_strides_do_not_matter():
    generator = torch.Generator().manual_seed(1)
    packed = torch.randn(2, 33, 3, 2, 16, generator=generator).transpose(1, 3)  # [B, H, 3, S, D]
    q, k, v = packed.unbind(2)
    columns = torch.randn(2, 2, 16, 33, generator=generator).transpose(-1, -2)
    shared = torch.randn(2, 1, 33, 16, generator=generator).expand(2, 2, 33, 16)
    for inputs in [
        (q, k, v),
        (columns, k, columns),
        (q, shared, shared),
        (q[:, :, ::2], k[..., :8, :], v[:, :, :8]),
    ]:
        options = {"block_q": 32, "block_k": 16}
        contiguous_q, contiguous_k, contiguous_v = (tensor.contiguous() for tensor in inputs)
        straight = flash(contiguous_q, contiguous_k, contiguous_v, Causal(), options=options)
        strided = flash(*inputs, Causal(), options=options)
        assert torch.equal(strided.out, straight.out)
        assert strided.lse is not None
        assert straight.lse is not None
        assert torch.equal(strided.lse, straight.lse)


def carved_from_nan(seqlen: int, width: int) -> Tensor:
    """Ones with NaN on every side, as in a slice of a larger buffer."""
    surroundings = torch.full((3, 3, seqlen + 40, width + 24), math.nan)
    inside = surroundings[1:2, 1:2, 20 : 20 + seqlen, 8 : 8 + width]
    inside.fill_(1)
    return inside


@pytest.mark.parametrize("mask", [Full(), Causal(), SlidingWindow(5)])
@pytest.mark.parametrize("seqlen_k", [8, 16, 33])
@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("width", [16, 24])
def test_nothing_beyond_the_ends_is_read(mask, seqlen_k, extra, width):
    q, k, v = (carved_from_nan(n, width) for n in (seqlen_k + extra, seqlen_k, seqlen_k))
    out = flash(q, k, v, mask, query_start=0).out
    assert torch.allclose(out, torch.ones_like(out), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("checked_integers")
def test_offsets_beyond_32_bits():
    """Row 319 × stride 7864320 = 2508718080, negative in 32 bits. Pages that nobody touches cost nothing."""
    rows, stride, width = 320, 7_864_320, 16
    uncommitted = 0x4000  # MAP_NORESERVE on Linux, which Python names from 3.13 on
    mapped = mmap.mmap(
        -1,
        2 * rows * stride,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | uncommitted,
    )
    buffer = torch.frombuffer(mapped, dtype=torch.float16)
    wide = buffer.as_strided((1, 1, rows, width), (rows * stride, rows * stride, stride, 1))
    wide.copy_(torch.randn(wide.shape, generator=torch.Generator().manual_seed(2)))
    near = wide.contiguous()
    options = {"block_q": 64, "block_k": 64}
    last_rows = slice(300, 320)
    expected = flash(near[:, :, last_rows], near, near, Causal(), options=options)
    actual = flash(wide[:, :, last_rows], wide, wide, Causal(), options=options)
    assert torch.equal(actual.out, expected.out)


def test_rows_beyond_32_bits_of_a_square():
    """Row × 65537 passes 2^32 within row floor(2^32 / 65537) = 65535. Only keys that are seen are read."""
    seqlen, width, chunk = 65537, 16, 16
    uncommitted = 0x4000
    mapped = mmap.mmap(-1, 2 * seqlen * seqlen, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | uncommitted)
    square = torch.frombuffer(mapped, dtype=torch.float16).view(1, 1, seqlen, seqlen)
    spread = square[..., :width]
    near = torch.zeros(1, 1, seqlen, width, dtype=torch.float16)
    last_rows = slice(seqlen - 2 * chunk, seqlen)
    drawn = torch.randn(1, 1, 2 * chunk, width, generator=torch.Generator().manual_seed(4)).half()
    near[:, :, last_rows], spread[:, :, last_rows] = drawn, drawn
    queries = slice(seqlen - chunk, seqlen)
    assert 2**32 // seqlen in range(seqlen)[queries]
    window = SlidingWindow(chunk)
    expected = flash(near[:, :, queries], near, near, window)
    actual = flash(spread[:, :, queries], spread, spread, window)
    assert expected.out.abs().min() > 0
    assert torch.equal(actual.out, expected.out)
    assert Problem(seqlen_q=seqlen, num_heads=1, mask=Full()).pairs() == seqlen**2 > 2**32


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["k", "v"])
def test_a_masked_slot_does_not_leak(poison, where):
    tensors = {name: torch.randn(1, 1, 2, 4) for name in "qkv"}
    tensors[where][0, 0, 1] = poison
    out, lse = flash(tensors["q"], tensors["k"], tensors["v"], key_lengths=(1,))
    assert torch.equal(out, tensors["v"][:, :, :1].expand(1, 1, 2, 4))
    assert lse is not None
    assert torch.isfinite(lse).all()


# A15: empty problems.


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), [(0, 4, 1), (3, 0, 1), (3, 3, 0)])
def test_empty_problems_have_the_right_shapes_and_launch_nothing(seqlen_q, seqlen_k, batch):
    q, k, v = (torch.randn(batch, 2, n, 16) for n in (seqlen_q, seqlen_k, seqlen_k))
    problem = Problem(
        seqlen_q=seqlen_q, seqlen_k=seqlen_k, batch=batch, num_heads=2, head_dim=16, mask=Full()
    )
    with trace_kernels() as trace:
        out, lse = FLASH.attention(q, k, v, problem=problem)
    assert trace.launches == []
    assert FLASH.cost(problem).requested_bytes == 0
    assert torch.equal(out, torch.zeros(batch, 2, seqlen_q, 16))
    assert lse is not None
    assert torch.equal(lse, torch.full((batch, 2, seqlen_q), -math.inf))


def test_heads_of_width_zero_average_the_values():
    v = torch.randn(1, 2, 21, 8)
    out, lse = flash(torch.empty(1, 2, 5, 0), torch.empty(1, 2, 21, 0), v)
    assert torch.allclose(out, v.mean(2, keepdim=True).expand_as(out), rtol=0, atol=1e-6)
    assert lse is not None
    assert torch.allclose(lse, torch.full_like(lse, math.log(21)), rtol=0, atol=1e-6)


# Windows, widths and scales.


def test_a_window_as_long_as_the_sequence_is_causal_bit_for_bit():
    q, k, v = torch.randn(3, 1, 2, 50, 16).unbind(0)
    assert torch.equal(flash(q, k, v, SlidingWindow(50)).out, flash(q, k, v, Causal()).out)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("head_dim", [4, 40, 96, 200, 256])
def test_widths_between_powers_of_two(head_dim, dtype):
    problem = Problem(seqlen_q=40, num_heads=1, head_dim=head_dim, dtype=dtype, options=SMALL_TILES)
    assert graded("triton-flash", problem).verdict == "ok"


@pytest.mark.parametrize("scale", [-0.3, 0.0, 2.0])
def test_any_finite_scale(scale):
    problem = Problem(seqlen_q=40, num_heads=1, head_dim=16, scale=scale, options=SMALL_TILES)
    assert graded("triton-flash", problem).verdict == "ok"


@pytest.mark.parametrize("scale", [1e-46, -1e-46, 5e-324, 1e-45, -3e-44])
def test_a_scale_that_float32_does_not_hold_is_none(scale):
    """Hidden scores of -inf times 0 would be NaN; every key has the same weight."""
    q, k, v = torch.randn(3, 1, 2, 40, 16, generator=torch.Generator().manual_seed(4))
    out, lse = flash(q, k, v, scale=scale)
    expected, expected_lse = flash(q, k, v, scale=0.0)
    assert torch.equal(out, expected)
    assert lse is not None
    assert torch.equal(lse, expected_lse)
