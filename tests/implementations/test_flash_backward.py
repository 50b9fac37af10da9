"""What is special to the backward kernels: lse's gradient, exact properties, offsets, costs, samples."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.contract.discovery import get_implementation
from attnbench.contract.evaluation import definition
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.sampling import ProgramSample
from attnbench.contract.semantics import SOFTMAX
from attnbench.measure.inputs import make_inputs
from attnbench.measure.interpreter import sample_kernels, trace_kernels
from attnbench.measure.kernel_trace import KernelTrace
from attnbench.measure.lifetimes import LifetimeTracker
from attnbench.measure.operators import OperandBytes
from attnbench.measure.watching import Together
from tests.implementations.conformance import graded

FLASH = get_implementation("triton-flash")
TILES = {"block_q": 16, "block_k": 32}
NAMES = ("q", "k", "v")


def problem_of(given: dict[str, Any]) -> Problem:
    shape = {"num_heads": 1, "head_dim": 16, "options": TILES, "mask": Causal(), "mode": "fwd_bwd"}
    return Problem(**{**shape, **given})


def gradients(problem: Problem, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    leaves = [inputs[name].detach().requires_grad_() for name in NAMES]
    out = FLASH.attention(*leaves, problem=problem).out
    return torch.autograd.grad(out, leaves, inputs["grad_out"])


@pytest.mark.parametrize(
    "given",
    [
        {"mask": Full()},
        {"mask": SlidingWindow(9), "num_heads": 4, "num_kv_heads": 2},
        {"batch": 2, "key_lengths": (0, 21), "query_start": (-9, 3)},
    ],
    ids=str,
)
def test_lse_has_a_gradient(given):
    """Of a loss that takes out and lse, and of one that takes lse alone; rows without keys add nothing."""
    problem = problem_of({"seqlen_q": 40, **given})
    inputs = make_inputs(problem, seed=0)
    weight = torch.randn(problem.batch, problem.num_heads, 40, generator=torch.Generator().manual_seed(1))
    for of_out in (1.0, 0.0):
        found = []
        for wide in (False, True):
            leaves = [(inputs[n].double() if wide else inputs[n]).detach().requires_grad_() for n in NAMES]
            if wide:
                out, lse = definition(SOFTMAX, *leaves, problem=problem.replace(dtype="float64"))
            else:
                out, lse = FLASH.attention(*leaves, problem=problem)
            assert lse is not None
            seen = torch.isfinite(lse.detach())
            loss = (lse.masked_fill(~seen, 0) * weight).sum()
            loss = loss + of_out * (out * inputs["grad_out"]).sum() if of_out else loss
            found.append(torch.autograd.grad(loss, leaves, allow_unused=True))
        for one, other in zip(*found, strict=True):
            expected = torch.zeros_like(one) if other is None else other
            torch.testing.assert_close(one.double(), expected.double(), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("mask", [Full(), Causal(), SlidingWindow(9)], ids=lambda mask: mask.slug)
@pytest.mark.parametrize("shift", [-6e4, 6e4])
def test_a_constant_added_to_a_row_of_logits_changes_no_gradient(mask, shift):
    """Multiples of 1/128 stay exact next to 6e4 in float32; weights made from an lse of 6e4 would not."""
    problem = problem_of({"seqlen_q": 40, "mask": mask, "scale": 1.0})
    inputs = make_inputs(problem, seed=0)
    q, k = inputs["q"], inputs["k"]
    q[...], k[..., 1:] = 0, 0
    q[..., 0], q[..., 1] = 1, 1
    k[..., 0] = (k[..., 0] * 128).round() / 128
    plain = gradients(problem, inputs)
    k[..., 1] = shift
    moved = gradients(problem, inputs)
    for one, other in ((plain[0][..., 0], moved[0][..., 0]), *zip(plain[1:], moved[1:], strict=True)):
        assert torch.allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("given", [{"mask": SlidingWindow(1)}, {"seqlen_k": 1, "mask": Full()}], ids=str)
def test_scores_of_a_key_seen_alone_have_no_gradient_at_all(given):
    """Its weight is 1 whatever its score: in float32 dq and dk are 0, not what two sums were rounded by."""
    problem = problem_of({"seqlen_q": 40, "head_dim": 64, "head_dim_v": 88, **given})
    dq, dk, _ = gradients(problem, make_inputs(problem, seed=0))
    assert torch.equal(dq, torch.zeros_like(dq))
    assert torch.equal(dk, torch.zeros_like(dk))


def test_gradients_of_saturated_rows_are_within_budget():
    """Where one key has nearly all the weight, dp - delta is what rounding left, unless it cancels."""
    problem = problem_of(
        {"seqlen_q": 56, "seqlen_k": 8, "head_dim": 96, "head_dim_v": 88, "scale": 0.5, "query_start": -36}
    )
    agreement = graded("triton-flash", problem)
    assert {name: error.verdict for name, error in agreement.gradients.items()} == dict.fromkeys(
        ("dq", "dk", "dv"), "ok"
    )


def test_gradients_are_the_same_in_every_run():
    problem = problem_of({"seqlen_q": 70, "num_heads": 4, "num_kv_heads": 2, "mask": SlidingWindow(30)})
    inputs = make_inputs(problem, seed=3)
    for one, other in zip(gradients(problem, inputs), gradients(problem, inputs), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "given", [{"mask": SlidingWindow(20)}, {"key_lengths": (3, 37), "batch": 2}], ids=str
)
def test_tiles_fetched_whole_are_the_same_numbers(given):
    """By descriptors or by pointers, NaN in hidden slots or not; columns that no descriptor takes as well."""
    problem = problem_of({"seqlen_q": 50, "head_dim": 24, "num_heads": 2, "num_kv_heads": 1, **given})
    whole = problem.replace(options={**TILES, "tma": 1})
    inputs = make_inputs(problem, seed=4)
    if problem.key_lengths is not None:
        for b, length in enumerate(problem.key_lengths):
            inputs["k"][b, :, length:] = inputs["v"][b, :, length:] = math.nan
    columns = {name: x.transpose(2, 3).contiguous().transpose(2, 3) for name, x in inputs.items()}
    expected = gradients(problem, inputs)
    for given_inputs in (inputs, columns):
        for one, other in zip(gradients(whole, given_inputs), expected, strict=True):
            assert torch.equal(one, other)
    out = FLASH.attention(*(inputs[name] for name in NAMES), problem=whole).out
    assert torch.equal(out, FLASH.attention(*(inputs[name] for name in NAMES), problem=problem).out)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), [(0, 4, 1), (3, 0, 1), (3, 3, 0)])
def test_gradients_of_empty_problems_are_zero(seqlen_q, seqlen_k, batch):
    shape = {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "batch": batch, "num_heads": 2, "mask": Full()}
    problem = problem_of(shape)
    inputs = make_inputs(problem, seed=0)
    with trace_kernels() as trace:
        found = gradients(problem, inputs)
    assert trace.launches == []
    for gradient, name in zip(found, NAMES, strict=True):
        assert torch.equal(gradient, torch.zeros_like(inputs[name]))
    assert FLASH.cost(problem).requested_bytes == FLASH.cost(problem).executed_flops == 0


def traced(problem: Problem, sample: dict[str, ProgramSample] | None) -> tuple[KernelTrace, Any, int]:
    inputs = make_inputs(problem, seed=0)
    leaves = [inputs[name].requires_grad_() for name in NAMES]
    lifetimes, operands = LifetimeTracker(), OperandBytes()
    before = lifetimes.hold([*leaves, inputs["grad_out"]])
    with trace_kernels(sample) as trace, Together(lifetimes, operands):
        result = FLASH.attention(*leaves, problem=problem)
        found = torch.autograd.grad(result.out, leaves, inputs["grad_out"])
    assert operands.total_bytes == FLASH.cost(problem).operand_bytes
    assert lifetimes.peak_bytes - before == FLASH.cost(problem).peak_bytes
    return trace, (result.out, *found), trace.requested_bytes


@pytest.mark.parametrize(
    "given",
    [
        {"seqlen_q": 100},
        {"seqlen_q": 100, "mask": Full(), "dtype": "float16"},
        {"seqlen_q": 100, "mask": SlidingWindow(20)},
        {"seqlen_q": 100, "mask": SlidingWindow(17, causal=False)},
        {"seqlen_q": 33, "num_heads": 6, "num_kv_heads": 2},
        {"seqlen_q": 40, "batch": 4, "key_lengths": (0, 1, 23, 40)},
        {"seqlen_q": 40, "batch": 2, "query_start": (-25, 3), "mask": SlidingWindow(9)},
        {"seqlen_q": 90, "seqlen_k": 20, "head_dim": 24, "head_dim_v": 40},
    ],
    ids=str,
)
def test_counted_bytes_equal_the_closed_form(given):
    """Whole, then sampled: the same total; what the sample computed is what the whole did."""
    problem = problem_of(given)
    whole, expected, requested = traced(problem, None)
    assert requested == FLASH.cost(problem).requested_bytes
    assert [launch.kernel for launch in whole.launches] == [spec.name for spec in FLASH.kernels[:3]]
    sampled, (out, dq, _, _), requested = traced(problem, sample_kernels(FLASH, problem))
    assert requested == FLASH.cost(problem).requested_bytes
    computed = torch.from_numpy(sampled.computed_rows(*out.shape[:3]))
    assert computed.any()
    assert torch.equal(out[computed], expected[0][computed])
    assert torch.equal(dq[computed], expected[1][computed])


@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(256)], ids=lambda mask: mask.slug)
def test_4096_tokens_follow_from_a_few_programs(mask):
    problem = Problem(seqlen_q=4096, num_heads=1, head_dim=16, mask=mask, mode="fwd_bwd")
    trace, _, requested = traced(problem, sample_kernels(FLASH, problem))
    assert requested == FLASH.cost(problem).requested_bytes
    assert trace.programs_run < 16 < trace.programs_total


def test_more_programs_than_a_second_grid_axis_holds():
    problem = Problem(seqlen_q=1, batch=257, num_heads=256, head_dim=16, mask=Full(), mode="fwd_bwd")
    trace, (_, _, dk, dv), _ = traced(problem, sample_kernels(FLASH, problem))
    assert {launch.grid for launch in trace.launches} == {(257 * 256, 1, 1)}
    assert torch.equal(dv[0, 0], make_inputs(problem, seed=0)["grad_out"][0, 0])
    assert dk[0, 0].abs().max() < 1e-5
    assert torch.isnan(dv[1:]).all(), "keys that no program computed must not look like results"
