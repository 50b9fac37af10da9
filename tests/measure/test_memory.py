"""Tensor lifetimes: by hand, as PyTorch's own tracker has them, equal for real and fake tensors."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed._tools.mem_tracker import MemTracker

from attnbench.measure.counting import count_call
from attnbench.measure.lifetimes import LifetimeTracker
from attnbench.measure.memory import measure_memory, predict_counts
from attnbench.measure.prediction import predict_peak
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case

KIB = 1024


def kib() -> Tensor:
    return torch.ones(256)


def test_a_tensor_counts_until_it_dies():
    with LifetimeTracker() as tracker:
        first, second = kib(), kib()
        assert tracker.live_bytes == 2 * KIB
        del first
        assert tracker.live_bytes == KIB
        third = second + second
        assert tracker.live_bytes == 2 * KIB
        del second, third
    assert tracker.live_bytes == 0
    assert tracker.peak_bytes == 2 * KIB


def test_temporaries_of_an_expression_are_seen():
    with LifetimeTracker() as tracker:
        x = kib()
        y = (x + 1) * 2 - 3
    assert tracker.live_bytes == 2 * KIB
    assert tracker.peak_bytes == 3 * KIB
    del x, y


def test_views_share_and_keep_their_storage():
    with LifetimeTracker() as tracker:
        x = kib()
        view = x.view(16, 16).transpose(0, 1)[3]
        assert tracker.live_bytes == KIB
        del x
        assert tracker.live_bytes == KIB, "a view keeps the whole storage alive"
        del view
        assert tracker.live_bytes == 0


def test_updates_in_place_allocate_nothing_and_resizing_does():
    with LifetimeTracker() as tracker:
        x = kib()
        x.add_(1).mul_(2)
        assert tracker.peak_bytes == KIB
        x.resize_(512)
        assert tracker.live_bytes == 2 * KIB


def test_held_tensors_count_once_and_a_peak_can_start_anew():
    x = kib()
    with LifetimeTracker() as tracker:
        assert tracker.hold([x, x.view(2, 128), kib()]) == 2 * KIB, "the third is dead at once, but was seen"
        assert tracker.live_bytes == KIB
        del x
        tracker.reset_peak()
        assert tracker.peak_bytes == tracker.live_bytes == 0


def test_granularity_rounds_each_storage_up():
    with LifetimeTracker(granularity=512) as tracker:
        tensors = [torch.ones(1), torch.ones(128), torch.ones(129)]
    assert tracker.live_bytes == 512 + 512 + 1024
    del tensors


@pytest.mark.parametrize("implementation", ["naive", "sdpa", "linear"])
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_equals_pytorchs_own_tracker(implementation, mode):
    workload = build_workload(Case(implementation=implementation, seqlen_q=96, num_kv_heads=2, mode=mode))
    theirs = MemTracker()
    with workload.environment():
        theirs.track_external(*workload.resident())
        with theirs:
            outputs = workload.call()
        del outputs
    snapshot = theirs.get_tracker_snapshot("peak")[torch.device("cpu")]
    assert count_call(workload).call_peak_bytes == snapshot["Total"]


WINDOW = {"name": "sliding-window", "window_size": 20}


@pytest.mark.parametrize(
    "implementation", ["naive", "sdpa", "sdpa-math", "sdpa-flash", "linear", "sliding-window", "triton-flash"]
)
@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("key_lengths", [None, (50, 96)])
def test_real_and_fake_peaks_are_equal(implementation, mode, key_lengths):
    case = Case(
        implementation=implementation,
        seqlen_q=96,
        batch=2,
        num_heads=2,
        mode=mode,
        key_lengths=key_lengths,
        mask=WINDOW if implementation == "sliding-window" else {},
    )
    real, fake = count_call(build_workload(case)), predict_counts(case)
    assert real.resident_bytes == fake.resident_bytes
    assert real.prepare_peak_bytes == fake.prepare_peak_bytes
    assert real.prepared_bytes == fake.prepared_bytes
    assert real.call_peak_bytes == fake.call_peak_bytes


def test_a_known_chain():
    """Unmasked, the textbook formula holds two score matrices at its peak: the softmax's input and output."""
    for seqlen in (64, 256):
        case = Case(implementation="naive", seqlen_q=seqlen, mask={"name": "full"})
        counted = count_call(build_workload(case))
        scores = 8 * seqlen * seqlen * 4
        assert counted.resident_bytes == 3 * 8 * seqlen * 64 * 4
        assert counted.call_peak_bytes - counted.resident_bytes == 2 * scores


def test_a_case_that_cannot_fit_is_known_at_once():
    assert predict_counts(Case(implementation="naive", seqlen_q=131072)).peak_bytes > 1e12
    assert predict_counts(Case(implementation="sdpa", seqlen_q=131072)).peak_bytes < 2e9


def test_the_peak_of_the_graph_is_part_of_what_a_backward_pass_needs():
    forward, backward, both = (
        predict_counts(Case(implementation="naive", seqlen_q=256, mode=mode))
        for mode in ("fwd", "bwd", "fwd_bwd")
    )
    assert backward.peak_bytes == both.peak_bytes > forward.peak_bytes
    assert backward.prepare_peak_bytes > backward.resident_bytes


def test_the_section_says_what_was_measured_and_what_was_predicted():
    case = Case(implementation="naive", seqlen_q=1, seqlen_k=128, mode="decode")
    workload = build_workload(case)
    section = measure_memory(workload, count_call(workload), predict_peak(case))
    assert section.backend == "tensor-lifetimes"
    assert section.peak_bytes == section.predicted_peak_bytes
    assert section.state_bytes == 2 * 8 * 128 * 64 * 4
    counted = count_call(workload)
    assert section.peak_increment_bytes == counted.call_peak_bytes - counted.resident_bytes


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_the_cuda_allocator_agrees_with_the_prediction(mode):
    section = on_cuda(implementation="naive", seqlen_q=1024, mode=mode)
    assert section.peak_bytes == pytest.approx(section.predicted_peak_bytes, rel=0.02)
    assert section.reserved_bytes >= section.peak_bytes


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["sdpa-flash", "sdpa-efficient", "triton-flash", "sliding-window"])
def test_the_cuda_allocator_agrees_where_the_scores_stay_on_the_chip(implementation):
    """Enough programs that no backend splits the keys, which would take memory within the operator."""
    mask = (
        {"name": "sliding-window", "window_size": 256}
        if implementation == "sliding-window"
        else {"name": "causal"}
    )
    section = on_cuda(implementation=implementation, batch=8, num_heads=16, seqlen_q=2048, mask=mask)
    assert section.peak_bytes == pytest.approx(section.predicted_peak_bytes, rel=0.02)
    assert section.reserved_bytes >= section.peak_bytes


def on_cuda(**keys) -> Any:
    """The section of a case in bfloat16, behind a call that has loaded what calls load once."""
    case = Case(device="cuda", dtype="bfloat16", **keys)
    workload = build_workload(case)
    with workload.environment():
        workload.prepare()
        workload.call()
    section = measure_memory(workload, count_call(workload), predict_peak(case))
    assert section.backend == "cuda-allocator"
    return section
