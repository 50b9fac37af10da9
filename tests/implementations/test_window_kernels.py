"""The window on the FlashAttention kernels as on CUDA: here they are interpreted, with the tiles of a GPU."""

import math
from typing import Any

import pytest
import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.evaluation import truth
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.contract.state import extend, new_state
from attnbench.measure.inputs import make_inputs
from attnbench.measure.interpreter import sample_kernels, trace_kernels

WINDOW = get_implementation("sliding-window")
FLASH = get_implementation("triton-flash")
FORMS: dict[str, dict[str, Any]] = {
    "causal": {"seqlen_q": 100, "mask": SlidingWindow(20)},
    "both-sides": {"seqlen_q": 90, "mask": SlidingWindow(9, causal=False), "num_kv_heads": 1},
    "one": {"seqlen_q": 40, "mask": SlidingWindow(1)},
    "cross": {"seqlen_q": 40, "seqlen_k": 90, "mask": SlidingWindow(33), "head_dim_v": 24},
    "ragged": {
        "seqlen_q": 70,
        "batch": 2,
        "mask": SlidingWindow(20),
        "key_lengths": (0, 37),
        "query_start": (-9, 5),
    },
}


def problem_of(form: str, mode: str) -> Problem:
    return Problem(**{"num_heads": 2, "head_dim": 16, **FORMS[form]}, mode=mode, device="cuda")


@pytest.mark.parametrize("form", FORMS)
def test_out_and_gradients_are_those_of_the_definition(form):
    problem = problem_of(form, "fwd_bwd")
    inputs = make_inputs(problem, seed=0)
    leaves = [inputs[name].requires_grad_() for name in "qkv"]
    with trace_kernels() as trace:
        out, lse = WINDOW.attention(*leaves, problem=problem)
        gradients = torch.autograd.grad(out, leaves, inputs["grad_out"])
    launched = [launch.kernel for launch in trace.launches]
    assert launched == ["flash_forward_kernel", "flash_dq_kernel", "flash_dkdv_kernel"]
    assert trace.requested_bytes == WINDOW.cost(problem).requested_bytes
    expected = truth(
        SOFTMAX,
        *(x.detach() for x in leaves),
        problem=problem.replace(device="cpu"),
        grad_out=inputs["grad_out"],
    )
    assert lse is not None
    assert expected.lse is not None
    found = (out, lse, *gradients)
    wanted = (expected.out, expected.lse, expected.dq, expected.dk, expected.dv)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_a_step_reads_the_ring_as_it_lies():
    """Tokens one by one, far beyond the window, which is all that the ring holds: out is that of one pass."""
    problem = Problem(
        seqlen_q=1, num_heads=4, num_kv_heads=2, head_dim=16, mask=SlidingWindow(20), mode="decode"
    )
    whole = problem.replace(seqlen_q=50, seqlen_k=50, mode="fwd")
    q, k, v = (make_inputs(whole, seed=0)[name] for name in "qkv")
    expected = WINDOW.attention(q, k, v, problem=whole).out
    state = new_state(WINDOW, problem, 50)
    assert state.slots == 20
    on_cuda = problem.replace(device="cuda")
    for token in range(50):
        new = slice(token, token + 1)
        with trace_kernels() as trace:
            (out, _), state = extend(WINDOW, state, q[:, :, new], k[:, :, new], v[:, :, new], problem=on_cuda)
        (launch,) = trace.launches
        assert launch.kernel == "flash_decode_kernel"
        torch.testing.assert_close(out, expected[:, :, new], rtol=1e-5, atol=1e-5)
    step = on_cuda.replace(seqlen_k=50)
    assert trace.requested_bytes == WINDOW.cost(step).requested_bytes


# How costs grow.

LENGTHS = [8192 << step for step in range(5)]


def secants(implementation: Any, quantity: str, lengths: list[int], **more: Any) -> list[float]:
    """``log(f(n2) / f(n1)) / log(n2 / n1)`` of neighbouring lengths."""
    costs = [
        implementation.cost(Problem(**{"num_heads": 8, "dtype": "float16", **more}, seqlen_q=n))
        for n in lengths
    ]
    values = [getattr(cost, quantity) for cost in costs]
    pairs = zip(values, values[1:], lengths, lengths[1:], strict=False)
    return [math.log(f2 / f1) / math.log(n2 / n1) for f1, f2, n1, n2 in pairs]


@pytest.mark.parametrize(
    "quantity", ["flops", "executed_flops", "requested_bytes", "operand_bytes", "peak_bytes"]
)
@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_a_window_costs_as_much_as_the_sequence_is_long(mode, quantity):
    found = secants(WINDOW, quantity, LENGTHS, mask=SlidingWindow(256), mode=mode, device="cuda")
    assert found == pytest.approx([1.0] * 4, abs=0.02)


@pytest.mark.parametrize("quantity", ["flops", "executed_flops", "exponentials"])
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_so_does_it_on_the_cpu(mode, quantity):
    found = secants(WINDOW, quantity, LENGTHS, mask=SlidingWindow(256), mode=mode, dtype="float32")
    assert found == pytest.approx([1.0] * 4, abs=0.02)


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_causal_attention_costs_the_square_of_the_length(mode):
    for quantity in ("flops", "executed_flops"):
        found = secants(FLASH, quantity, LENGTHS, mask=Causal(), mode=mode, device="cuda")
        assert found == pytest.approx([2.0] * 4, abs=0.02)


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_counted_bytes_of_a_window_grow_as_the_formulas_say(mode):
    """From a sample of the programs that stands for all."""
    counted = []
    for n in (8192, 16384):
        problem = Problem(
            seqlen_q=n,
            num_heads=1,
            head_dim=16,
            dtype="float16",
            mask=SlidingWindow(256),
            mode=mode,
            device="cuda",
        )
        inputs = make_inputs(problem, seed=0)
        leaves = [inputs[name].requires_grad_(mode == "fwd_bwd") for name in "qkv"]
        with trace_kernels(sample_kernels(WINDOW, problem)) as trace:
            out = WINDOW.attention(*leaves, problem=problem).out
            if mode == "fwd_bwd":
                torch.autograd.grad(out, leaves, inputs["grad_out"])
        assert trace.requested_bytes == WINDOW.cost(problem).requested_bytes
        counted.append(trace.requested_bytes)
    assert math.log2(counted[1] / counted[0]) == pytest.approx(1.0, abs=0.02)
