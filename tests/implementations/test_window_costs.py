"""What a window costs: counts that are exact, memory that grows with n·W, the kernels that run on CUDA."""

import sys
from subprocess import run as run_process
from typing import Any

import msgspec
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.measure.counting import count_call
from attnbench.measure.flop_counter import FlopCounter
from attnbench.measure.flops import measure_flops
from attnbench.measure.inputs import make_inputs
from attnbench.measure.lifetimes import LifetimeTracker
from attnbench.measure.operators import OperandBytes
from attnbench.measure.pipeline import measure_case
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

WINDOW = get_implementation("sliding-window")
NAIVE = get_implementation("naive")

COUNTED: dict[str, dict[str, Any]] = {
    "plain": {"seqlen_q": 300},
    "both-sides": {"seqlen_q": 130, "mask": SlidingWindow(7, causal=False), "batch": 2},
    "all-tiles-of-a-head": {"seqlen_q": 700, "num_heads": 2},
    "grouped": {"seqlen_q": 130, "num_kv_heads": 2, "head_dim_v": 16},
    "half": {"seqlen_q": 70, "seqlen_k": 200, "dtype": "float16"},
    "double-positions": {"seqlen_q": 100, "query_start": -30, "key_lengths": (50,), "dtype": "float64"},
    "one-query": {"seqlen_q": 1, "seqlen_k": 500},
    "one-token": {"seqlen_q": 1},
    "wide": {"seqlen_q": 20, "mask": SlidingWindow(300)},
}


@pytest.mark.parametrize("shape", COUNTED.values(), ids=COUNTED)
def test_costs_equal_what_operators_and_tensors_count(shape: dict[str, Any]) -> None:
    problem = Problem(**{"mask": SlidingWindow(40), **shape})
    inputs = list(make_inputs(problem).values())
    with LifetimeTracker() as lifetimes:
        lifetimes.hold(inputs)
        resident = lifetimes.live_bytes
        with OperandBytes() as operands, FlopCounter() as flops:
            WINDOW.attention(*inputs, problem=problem)
    cost = WINDOW.cost(problem)
    assert cost.executed_flops == flops.flops
    assert cost.operand_bytes == operands.total_bytes
    assert cost.peak_bytes == lifetimes.peak_bytes - resident


@pytest.mark.parametrize("num_kv_heads", [8, 2])
def test_backward_flops_equal_what_operators_count(num_kv_heads: int) -> None:
    problem = Problem(
        seqlen_q=200, mask=SlidingWindow(40), mode="bwd", num_kv_heads=num_kv_heads, head_dim_v=32
    )
    inputs = make_inputs(problem)
    q, k, v = (inputs[name].requires_grad_() for name in "qkv")
    out = WINDOW.attention(q, k, v, problem=problem).out
    with FlopCounter() as flops:
        out.sum().backward()
    assert WINDOW.cost(problem).executed_flops == flops.flops


def test_useful_flops_are_those_of_the_window_alone() -> None:
    cost = WINDOW.cost(Problem(seqlen_q=2048, num_heads=1, mask=SlidingWindow(512)))
    assert cost.flops == 4 * 917_760 * 64
    assert cost.executed_flops is not None
    assert 1 < cost.executed_flops / cost.flops < 1.1


def test_decoding_reads_the_window_of_a_cache_and_copies_nothing_of_it() -> None:
    problem = Problem(seqlen_q=1, seqlen_k=900, batch=2, mask=SlidingWindow(100), mode="decode")
    cache = torch.full((2, 2, 8, 4096, 64), torch.nan)
    cache[:, :, :, 800:900] = 1
    k, v = cache[..., :900, :]
    with LifetimeTracker() as lifetimes:
        resident = lifetimes.hold([cache])
        out = WINDOW.attention(torch.ones(2, 8, 1, 64), k, v, problem=problem).out
    torch.testing.assert_close(out, torch.ones(2, 8, 1, 64))
    assert lifetimes.peak_bytes - resident < 100 * 64 * 4


def peak_bytes(seqlen: int, window_size: int, mode: str) -> int:
    """Peak beyond the inputs, on fake tensors."""
    problem = Problem(seqlen_q=seqlen, mask=SlidingWindow(window_size), mode=mode)
    with FakeTensorMode(), LifetimeTracker() as lifetimes:
        inputs = [torch.empty(1, 8, seqlen, 64, requires_grad=mode == "fwd_bwd") for _ in range(3)]
        resident = lifetimes.hold(inputs)
        lifetimes.reset_peak()
        out = WINDOW.attention(*inputs, problem=problem).out
        if mode == "fwd_bwd":
            torch.autograd.grad(out, inputs, out)
    return lifetimes.peak_bytes - resident


@pytest.mark.parametrize(
    ("mode", "whole_tensors"), [("fwd", 1), pytest.param("fwd_bwd", 4, marks=pytest.mark.long)]
)
def test_memory_grows_with_the_sequence_and_stays_below_its_square(mode: str, whole_tensors: int) -> None:
    tensor_bytes = 4 * 8 * 64
    small, large = peak_bytes(4_096, 256, mode), peak_bytes(16_384, 256, mode)
    assert large - small == whole_tensors * tensor_bytes * (16_384 - 4_096)
    assert small - whole_tensors * tensor_bytes * 4_096 < 32 << 20


def test_on_cuda_the_kernels_are_costed_where_they_run_and_the_band_elsewhere() -> None:
    kernel = get_implementation("triton-flash")
    forward = Problem(seqlen_q=512, mask=SlidingWindow(64), device="cuda", dtype="bfloat16")
    for mode in ("fwd", "bwd", "fwd_bwd"):
        assert WINDOW.cost(forward.replace(mode=mode)) == kernel.cost(forward.replace(mode=mode))
    for elsewhere in (
        forward.replace(dtype="float64"),
        forward.replace(head_dim=512),
    ):
        cost = WINDOW.cost(elsewhere)
        assert cost.requested_bytes is None
        assert cost.flops > 0
        assert WINDOW.kernels_for(elsewhere) == ()
    step = forward.replace(mode="decode", seqlen_q=1)
    for problem, names in (
        (forward, ["forward"]),
        (forward.replace(mode="bwd"), ["dq", "dkdv"]),
        (forward.replace(mode="fwd_bwd"), ["forward", "dq", "dkdv"]),
        (step, ["decode"]),
    ):
        assert [spec.name for spec in WINDOW.kernels_for(problem)] == [
            f"flash_{name}_kernel" for name in names
        ]
    assert WINDOW.kernels_for(forward.replace(device="cpu")) == ()
    assert WINDOW.kernels[0].function() is kernel.kernels[0].function()


CUDA = Case(
    implementation="sliding-window",
    batch=4,
    num_heads=32,
    seqlen_q=4096,
    mask={"name": "sliding-window", "window_size": 1024},
    dtype="bfloat16",
    device="cuda",
)


def test_a_prediction_for_cuda_is_of_the_kernel_wherever_it_is_made() -> None:
    workload = build_workload(CUDA, fake=True)
    counts, cost = count_call(workload), WINDOW.cost(CUDA.problem())
    assert counts.operators == ("attnbench.flash_forward",)
    assert counts.call_peak_bytes - counts.resident_bytes == cost.peak_bytes == 69_206_016
    assert counts.operand_bytes == cost.operand_bytes == 270_532_608
    unavailable: dict[str, str] = {}
    assert measure_flops(workload, counts, unavailable).executed == cost.executed_flops
    assert unavailable == {}


def test_a_prediction_for_cuda_with_gradients_is_of_the_kernels() -> None:
    case = msgspec.structs.replace(CUDA, mode="fwd_bwd")
    workload = build_workload(case, fake=True)
    counts, cost = count_call(workload), WINDOW.cost(case.problem())
    assert counts.operators == ("attnbench.flash_forward", "attnbench.flash_dq", "attnbench.flash_dkdv")
    assert counts.operand_bytes == cost.operand_bytes
    assert measure_flops(workload, counts, {}).executed == cost.executed_flops


def test_the_kernel_in_a_model_is_predicted_and_its_flops_are_counted() -> None:
    """Beside the projections, which are the same for every implementation, the kernel runs once a layer."""
    mask = {"name": "sliding-window", "window_size": 32}
    counts = {}
    for name in ("sliding-window", "naive"):
        case = Case(implementation=name, level="model", preset="tiny", seqlen_q=128, device="cuda", mask=mask)
        workload = build_workload(case, fake=True)
        counts[name] = count_call(workload), workload
    counted, workload = counts["sliding-window"]
    naive, _ = counts["naive"]
    layers, cost = workload.attentions[0].layers, WINDOW.cost(workload.problem)
    assert counted.operators.count("attnbench.flash_forward") == layers
    replaced = layers * (NAIVE.cost(workload.problem).executed_flops or 0)
    assert counted.kernel_flops == layers * (cost.executed_flops or 0)
    assert counted.flops == naive.flops - replaced + counted.kernel_flops
    assert measure_flops(workload, counted, {}).executed == counted.flops


@pytest.mark.parametrize(
    ("mode", "kernels"),
    [
        ("fwd", ["flash_forward_kernel"]),
        ("fwd_bwd", ["flash_forward_kernel", "flash_dq_kernel", "flash_dkdv_kernel"]),
    ],
)
def test_a_record_names_the_kernels_that_run_and_no_others(mode: str, kernels: list[str]) -> None:
    case = msgspec.structs.replace(CUDA, mode=mode)
    record = measure_case(case, MeasureSettings(), memory_limit_bytes=1)
    assert record.status == "oom"
    assert record.provenance is not None
    assert record.provenance.kernels == kernels
    short = msgspec.structs.replace(case, device="cpu", batch=1, num_heads=1, num_kv_heads=1, seqlen_q=64)
    on_the_cpu = measure_case(short, MeasureSettings(), memory_limit_bytes=1)
    assert on_the_cpu.provenance is not None
    assert on_the_cpu.provenance.kernels == []


def test_it_loads_no_triton_on_the_cpu() -> None:
    code = (
        "import sys, torch; before = 'triton' in sys.modules\n"
        "import attnbench.implementations.sliding_window\n"
        "sys.exit(0 if before == ('triton' in sys.modules) else 1)"
    )
    assert run_process([sys.executable, "-c", code], check=False).returncode == 0
