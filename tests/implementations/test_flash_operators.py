"""The operators of the tiled kernels as PyTorch sees them: schemas, fakes, compiler, counters, refusals."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.measure.lifetimes import LifetimeTracker
from attnbench.measure.operators import OperandBytes
from attnbench.measure.watching import Together

FLASH = get_implementation("triton-flash")
OPERATORS = torch.ops.attnbench
TILE = [16, 16, 4, 1]
FORM = ([1], [20], None, 0, 0.25)


def leaves() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, heads, 20, 16, generator=generator) for heads in (4, 2, 2))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def test_operators_keep_their_promises_to_torch():
    """Schema, fake kernel, and autograd with static and dynamic shapes through PyTorch's compiler."""
    inputs, form = leaves(), (*FORM, TILE)
    with torch.no_grad():
        out, lse, statistics = OPERATORS.flash_forward(*inputs, *form, TILE, TILE)
    plain, grad_out = [x.detach() for x in inputs], torch.ones_like(out)
    calls: dict[Any, tuple[Any, ...]] = {
        OPERATORS.flash_forward.default: (*inputs, *form, TILE, TILE),
        OPERATORS.flash_dq.default: (*plain, grad_out, torch.ones_like(lse), out, statistics, *form),
        OPERATORS.flash_dkdv.default: (*plain, grad_out, statistics, lse, *form),
    }
    for operator, arguments in calls.items():
        assert set(torch.library.opcheck(operator, arguments).values()) == {"SUCCESS"}


def test_without_gradients_no_statistics_are_kept():
    q, k, v = leaves()
    with torch.no_grad():
        _, _, statistics = OPERATORS.flash_forward(q, k, v, *FORM, TILE, [], [])
    assert statistics.numel() == 0
    with pytest.raises(RuntimeError, match="only if given their tiles"):
        OPERATORS.flash_forward(q, k, v, *FORM, TILE, [], [])


def test_the_compiler_takes_both_passes_in_one_graph():
    problem = Problem(seqlen_q=20, num_heads=4, num_kv_heads=2, head_dim=16, mask=SlidingWindow(7))

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = FLASH.attention(q * 2, k, v, problem=problem)
        return out.square().sum() + (lse if lse is not None else out).sum()

    inputs = leaves()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(loss(*inputs), inputs)
    actual = torch.autograd.grad(compiled(*inputs), inputs)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_fake_tensors_see_one_operator_a_kernel(mode):
    """A million tokens: bytes, FLOPs and peak are the closed form, PyTorch's own FLOP counter agrees."""
    seqlen = 1 << 20
    problem = Problem(
        seqlen_q=seqlen, num_heads=8, num_kv_heads=2, dtype="bfloat16", device="cuda", mode=mode
    )
    operands, lifetimes, theirs = OperandBytes(), LifetimeTracker(), FlopCounterMode(display=False)

    def forward(inputs: list[Tensor]) -> Any:
        return FLASH.attention(*inputs, problem=problem)

    with FakeTensorMode():
        inputs = [torch.empty(1, heads, seqlen, 64, dtype=torch.bfloat16) for heads in (8, 2, 2)]
        grad_out = torch.empty_like(inputs[0])
        inputs = [x.requires_grad_(problem.needs_gradients) for x in inputs]
        lifetimes.hold([*inputs, grad_out])
        with lifetimes:
            result = forward(inputs) if mode == "bwd" else None
        before = lifetimes.live_bytes
        lifetimes.reset_peak()
        with theirs, Together(lifetimes, operands):
            if result is None:
                result = forward(inputs)
            if problem.needs_gradients:
                torch.autograd.grad(result.out, inputs, grad_out)
    kernels = {"fwd": ["forward"], "bwd": ["dq", "dkdv"], "fwd_bwd": ["forward", "dq", "dkdv"]}[mode]
    assert operands.operators == [f"attnbench.flash_{kernel}" for kernel in kernels]
    cost = FLASH.cost(problem)
    assert operands.total_bytes == cost.operand_bytes
    assert lifetimes.peak_bytes - before == cost.peak_bytes
    assert theirs.get_total_flops() == cost.executed_flops


def test_there_is_no_second_derivative_and_it_says_so():
    q, k, v = leaves()
    out = FLASH.attention(q, k, v, problem=Problem(seqlen_q=20, num_heads=4, num_kv_heads=2, head_dim=16)).out
    (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dq.sum().backward()


def test_finding_the_implementation_does_not_load_the_compiler():
    script = """
import attnbench, sys
attnbench.get_implementation("triton-flash")
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
