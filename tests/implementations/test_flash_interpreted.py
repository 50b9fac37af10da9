"""Kernels in Triton's interpreter: what it makes of bfloat16; what happens without it, or without triton."""

import os
import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl

from attnbench.contract.api import attend
from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import refusals
from attnbench.contract.problem import Problem
from attnbench.measure.pipeline import measure_case
from attnbench.model.builder import build_model
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

FLASH = get_implementation("triton-flash")


def test_bfloat16_is_refused_in_the_interpreter_alone():
    assert refusals(FLASH, Problem(seqlen_q=8, dtype="bfloat16", device="cuda")) == []
    assert FLASH.execution(Problem(seqlen_q=8)) == "interpreted"
    assert FLASH.execution(Problem(seqlen_q=8, device="cuda")) == "native"


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr):
    block = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out_ptr + block, tl.dot(tl.load(a_ptr + block), tl.load(b_ptr + block), input_precision="ieee"))


@triton.jit
def sum_kernel(x_ptr, out_ptr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, 512)), axis=0))


@triton.jit
def cast_kernel(x_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr).to(out_ptr.dtype.element_ty))


# E01 (triton-lang/triton#11584): what the interpreter makes of bfloat16. Once one of these fails, see whether
# the refusal can be lifted.


@pytest.mark.parametrize(("dtype", "right"), [(torch.float16, True), (torch.bfloat16, False)])
def test_products_of_small_integers(dtype, right):
    """Exact in both; the interpreter multiplies bit patterns."""
    a, b = torch.randint(-2, 3, (2, 16, 16), generator=torch.Generator().manual_seed(3)).to(dtype).unbind(0)
    out = torch.empty(16, 16)
    product_kernel[(1,)](a, b, out)
    truth = a.float() @ b.float()
    assert torch.equal(out, truth) is right
    assert right or (out - truth).abs().max() > 1e9


@pytest.mark.parametrize(("dtype", "total"), [(torch.float16, 512), (torch.bfloat16, 0)])
def test_a_sum_of_512_ones(dtype, total):
    out = torch.empty(1)
    sum_kernel[(1,)](torch.ones(512, dtype=dtype), out)
    assert out.item() == total


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float16, 1.01171875), (torch.bfloat16, 1.0078125), (None, 1.015625)]
)
def test_a_cast_is_cut_off_and_not_rounded(dtype, value):
    """1.01171875 lies midway between two numbers of bfloat16: PyTorch (``None``) rounds to the even one."""
    x = torch.tensor([1.01171875])
    out = torch.empty(1, dtype=dtype or torch.bfloat16)
    if dtype is None:
        out.copy_(x)
    else:
        cast_kernel[(1,)](x, out)
    assert out.item() == value


def test_no_interpreted_result_is_ever_made_of_bfloat16():
    """At the contract, in a benchmark and in a model: each path asks for refusals first."""
    x = torch.ones(1, 1, 16, 16, dtype=torch.bfloat16)
    with pytest.raises(UsageError, match="bit patterns of bfloat16"):
        attend(x, x, x, implementation=FLASH)
    case = Case(implementation="triton-flash", seqlen_q=16, dtype="bfloat16")
    record = measure_case(case, MeasureSettings())
    assert record.status == "unsupported"
    assert "bit patterns of bfloat16" in (record.reason or "")
    with pytest.raises(UsageError, match="bit patterns of bfloat16"):
        build_model("tiny", "triton-flash", dtype="bfloat16")


NOT_INTERPRETING = """
import torch, attnbench
from attnbench.contract.errors import UsageError
x = torch.ones(1, 1, 4, 16)
try:
    attnbench.attend(x, x, x, implementation="triton-flash")
except UsageError as error:
    print(error)
"""
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import attnbench
from attnbench.contract.discovery import broken_implementations
print(sorted(attnbench.find_implementations()), broken_implementations())
"""


def in_another_process(script: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_cpu_needs_the_interpreter():
    assert "set TRITON_INTERPRET=1" in in_another_process(NOT_INTERPRETING)


def test_without_triton_only_this_implementation_is_missing():
    found, broken = in_another_process(WITHOUT_TRITON).split("] ", 1)
    assert "'naive'" in found
    assert "'sliding-window'" in found
    assert "triton-flash" not in found
    assert "triton_flash" in broken
    assert "sliding" not in broken
