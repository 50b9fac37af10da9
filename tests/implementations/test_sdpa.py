"""PyTorch's backends on CUDA, predicted without a GPU: which operator, what it holds, what it refuses."""

from typing import Any

import pytest
from torch._subclasses.fake_tensor import FakeTensor

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import refusals
from attnbench.measure.counting import CUDA_GRANULARITY, Counts
from attnbench.measure.memory import predict_counts
from attnbench.measure.pipeline import measure_case
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

FUSED = ("flash", "efficient", "cudnn")
SEQLEN, HEADS, WIDTH = 1024, 8, 64
TENSOR_BYTES = 2 * HEADS * SEQLEN * WIDTH
LSE_BYTES = 4 * HEADS * SEQLEN
FULL = {"name": "full"}
WINDOW = {"name": "sliding-window", "window_size": 64}


def cuda_case(implementation: str, **keys: Any) -> Case:
    shape = {"seqlen_q": SEQLEN, "num_heads": HEADS, "head_dim": WIDTH, "dtype": "bfloat16"}
    return Case(**{"implementation": implementation, "device": "cuda", **shape, **keys})


def backend_of(counts: Counts) -> str | None:
    return get_implementation("sdpa").backend(counts.operators)


def increment(counts: Counts) -> int:
    return counts.call_peak_bytes - counts.resident_bytes


@pytest.mark.parametrize("mask", [{"name": "causal"}, FULL], ids=["causal", "full"])
@pytest.mark.parametrize("backend", FUSED)
def test_a_fused_forward_pass_holds_out_and_lse(backend: str, mask: dict[str, Any]) -> None:
    counts = predict_counts(cuda_case(f"sdpa-{backend}", mask=mask))
    assert backend_of(counts) == backend
    # The efficient backend keeps lse for a backward pass alone. Seeds of the dropout fill a block each.
    expected = TENSOR_BYTES + (0 if backend == "efficient" else LSE_BYTES)
    assert expected <= increment(counts) <= expected + 2 * CUDA_GRANULARITY
    assert counts.flops == 4 * HEADS * SEQLEN * SEQLEN * WIDTH


@pytest.mark.parametrize("backend", FUSED)
def test_a_fused_backward_pass_adds_three_gradients(backend: str) -> None:
    counts = predict_counts(cuda_case(f"sdpa-{backend}", mode="fwd_bwd"))
    assert backend_of(counts) == backend
    assert any(name.endswith(f"{backend}_attention_backward") for name in counts.operators)
    expected = 4 * TENSOR_BYTES + LSE_BYTES
    assert expected <= increment(counts) <= expected + 2 * CUDA_GRANULARITY
    assert counts.flops == 7 * 2 * HEADS * SEQLEN * SEQLEN * WIDTH


@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_a_mask_becomes_a_bias_of_the_scores_size(backend: str) -> None:
    counts = predict_counts(cuda_case(f"sdpa-{backend}", mask=WINDOW))
    visible, bias = SEQLEN * SEQLEN, 2 * SEQLEN * SEQLEN
    assert increment(counts) >= visible + bias + TENSOR_BYTES


def test_masks_of_the_efficient_backend_are_padded() -> None:
    """PyTorch hands it rows of a multiple of 16 numbers: for a moment there are three squares."""
    counts = predict_counts(cuda_case("sdpa-efficient", mask=WINDOW, seqlen_q=1000))
    visible, bias, padded = 1000 * 1000, 2 * 1000 * 1000, 2 * 1000 * 1008
    blocks = (-(-size // CUDA_GRANULARITY) * CUDA_GRANULARITY for size in (visible, bias, padded))
    assert increment(counts) == sum(blocks)


@pytest.mark.parametrize(
    ("keys", "backend"),
    [
        ({}, "flash"),
        ({"num_kv_heads": 2}, "flash"),
        ({"num_kv_heads": 2, "mode": "fwd_bwd"}, "flash"),
        ({"head_dim": 60}, "flash"),
        ({"mode": "decode", "seqlen_q": 1, "seqlen_k": 500}, "flash"),
        ({"dtype": "float32"}, "efficient"),
        ({"mask": WINDOW}, "efficient"),
        ({"head_dim_v": 32}, "efficient"),
        ({"head_dim": 320}, "efficient"),
        ({"dtype": "float64"}, "math"),
        ({"mask": WINDOW, "head_dim": 60}, "math"),
    ],
)
def test_what_cuda_would_choose(keys: dict[str, Any], backend: str) -> None:
    assert backend_of(predict_counts(cuda_case("sdpa", **keys))) == backend


def test_heads_of_the_flash_backend_are_padded_and_cut_back() -> None:
    workload = build_workload(cuda_case("sdpa-flash", head_dim=60, mode="fwd_bwd"), fake=True)
    with workload.environment():
        out, _, gradients = workload.call()
    assert isinstance(out, FakeTensor)
    assert out.shape == (1, HEADS, SEQLEN, 60)
    assert gradients is not None
    assert {tuple(x.shape) for x in gradients.values()} == {tuple(out.shape)}


def test_what_pytorch_does_not_describe_is_said_and_not_guessed() -> None:
    case = cuda_case("sdpa-efficient", num_kv_heads=2)
    assert backend_of(predict_counts(case)) == "efficient"
    with pytest.raises(NotImplementedError, match="no backward pass of the efficient backend for grouped"):
        predict_counts(cuda_case("sdpa-efficient", num_kv_heads=2, mode="fwd_bwd"))


@pytest.mark.parametrize("level", ["block", "model"])
def test_layers_are_predicted_for_the_device_of_the_case(level: Any) -> None:
    case = Case(
        implementation="sdpa",
        level=level,
        preset="tiny-gpt2",
        seqlen_q=128,
        device="cuda",
        dtype="bfloat16",
    )
    counts = predict_counts(case)
    assert backend_of(counts) == "flash"


@pytest.mark.parametrize(
    ("implementation", "fits"), [("sdpa", True), ("sdpa-cudnn", True), ("sdpa-math", False)]
)
def test_only_what_cannot_fit_is_oom_before_it_runs(implementation: str, fits: bool) -> None:
    case = cuda_case(implementation, seqlen_q=131072, mode="fwd_bwd")
    if fits:
        assert predict_counts(case).peak_bytes < 2 << 30
        return
    record = measure_case(case, MeasureSettings(), memory_limit_bytes=140 << 30)
    assert record.status == "oom"


@pytest.mark.parametrize(
    ("backend", "keys", "words"),
    [
        ("efficient", {"head_dim": 60}, "heads in multiples of 8"),
        ("efficient", {"head_dim": 30, "dtype": "float32"}, "heads in multiples of 4"),
        ("cudnn", {"head_dim_v": 20}, "heads in multiples of 8"),
        ("cudnn", {"seqlen_q": 1, "mode": "decode"}, "more than one key"),
        ("flash", {"mask": WINDOW}, "takes no mask"),
    ],
)
def test_limits_on_cuda_are_known_beforehand(backend: str, keys: dict[str, Any], words: str) -> None:
    case = cuda_case(f"sdpa-{backend}", **keys)
    reasons = refusals(get_implementation(case.implementation), case.problem())
    assert any(words in reason for reason in reasons), reasons
