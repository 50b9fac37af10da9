"""Peak memory. In: a workload, or only its case. Out: bytes at the peak of one call, measured and predicted.

The prediction runs the same operators on fake tensors and adds up lifetimes, so it costs milliseconds at
any length and is equal, to the byte, to what the same count gives for real tensors. On CUDA the allocator
is asked.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.contract.state import state_bytes
from attnbench.plan.case import Case

from .lifetimes import LifetimeTracker
from .record import Memory
from .workload import Workload, build_workload

CUDA_GRANULARITY = 512
"""CUDA's caching allocator rounds every block up to this many bytes."""


class Lifetimes(NamedTuple):
    """Bytes of tensors: resident before anything runs, at the peak of ``prepare``, and of the call."""

    resident_bytes: int
    prepare_peak_bytes: int
    call_peak_bytes: int


def count_lifetimes(workload: Workload) -> Lifetimes:
    """Run the workload once, real or fake, and count the storages that live meanwhile."""
    granularity = CUDA_GRANULARITY if workload.case.device == "cuda" else 1
    with workload.environment(), LifetimeTracker(granularity) as tracker:
        resident = tracker.hold(workload.resident())
        workload.prepare()
        prepare_peak = tracker.peak_bytes
        tracker.reset_peak()
        outputs = workload.call()
        del outputs
    return Lifetimes(resident, prepare_peak, tracker.peak_bytes)


def predict_lifetimes(case: Case) -> Lifetimes:
    """Predict what ``count_lifetimes`` would say, without allocating anything."""
    return count_lifetimes(build_workload(case, fake=True))


def predict_peak_bytes(case: Case) -> int:
    """Predict the bytes that the case needs at most, with inputs, weights and what ``prepare`` holds."""
    predicted = predict_lifetimes(case)
    return max(predicted.prepare_peak_bytes, predicted.call_peak_bytes)


def measure_memory(workload: Workload, predicted: Lifetimes | None = None) -> Memory:
    """Measure the peak of one call, in one call.

    ``peak_increment_bytes`` is the peak above inputs and weights: temporaries, outputs and, for ``bwd``, the
    graph. ``predicted`` saves predicting it again.
    """
    expected = predicted or predict_lifetimes(workload.case)
    section = _allocator_peak(workload) if workload.device.type == "cuda" else _lifetime_peak(workload)
    section.predicted_peak_bytes = expected.call_peak_bytes
    if workload.problem.mode == "decode":
        problem = workload.problem
        section.state_bytes = state_bytes(workload.implementation, problem, problem.seqlen_k)
    return section


def _lifetime_peak(workload: Workload) -> Memory:
    counted = count_lifetimes(workload)
    return Memory(
        peak_bytes=counted.call_peak_bytes,
        peak_increment_bytes=counted.call_peak_bytes - counted.resident_bytes,
        backend="tensor-lifetimes",
    )


def _allocator_peak(workload: Workload) -> Memory:
    device = workload.device
    resident = sum(_rounded(tensor) for tensor in _distinct(workload.resident()))
    with workload.environment():
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device)
        workload.prepare()
        torch.cuda.reset_peak_memory_stats(device)
        outputs = workload.call()
        torch.cuda.synchronize(device)
        del outputs
    increment = torch.cuda.max_memory_allocated(device) - before
    return Memory(
        peak_bytes=resident + increment,
        peak_increment_bytes=increment,
        reserved_bytes=torch.cuda.max_memory_reserved(device),
        backend="cuda-allocator",
    )


def _distinct(tensors: list[Tensor]) -> list[Tensor]:
    return list({tensor.untyped_storage()._cdata: tensor for tensor in tensors}.values())


def _rounded(tensor: Tensor) -> int:
    return -(-tensor.untyped_storage().nbytes() // CUDA_GRANULARITY) * CUDA_GRANULARITY
