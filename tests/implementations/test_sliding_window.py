"""What is special about a window: edges of the band, memory that grows with n·W, counts that are exact."""

import sys
from subprocess import run as run_process
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.discovery import get_implementation
from attnbench.contract.evaluation import definition, truth
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
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
    inputs = tensors(problem)
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
    out = WINDOW.attention(*tensors(problem, gradients=True), problem=problem).out
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
    assert on_the_cpu.provenance.kernels is None


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


def test_it_loads_no_triton_on_the_cpu() -> None:
    code = (
        "import sys, torch; before = 'triton' in sys.modules\n"
        "import attnbench.implementations.sliding_window\n"
        "sys.exit(0 if before == ('triton' in sys.modules) else 1)"
    )
    assert run_process([sys.executable, "-c", code], check=False).returncode == 0


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
