"""Peak memory. In: a workload and the counts of its call, or only a case. Out: bytes at the peak of one call.

On the CPU tensor lifetimes are counted, on CUDA the caching allocator is asked; beside either stands the
prediction (`prediction.py`).
"""

from typing import NamedTuple

from attnbench.plan.case import Case

from .counting import Counts, count_call
from .cuda_memory import ask_allocator
from .prepared import tensors_of
from .record import Memory
from .workload import Workload, build_workload


class Predicted(NamedTuple):
    """Bytes at the peaks of a case, inputs included: of the call, and of the call and what prepares it."""

    call_peak_bytes: int
    peak_bytes: int
    backend: str


def predict_counts(case: Case) -> Counts:
    """Count one call on fake tensors: nothing is computed, nothing is allocated."""
    return count_call(build_workload(case, fake=True))


def measure_memory(
    workload: Workload,
    counted: Counts | None,
    predicted: Predicted | None,
    unavailable: dict[str, str] | None = None,
) -> Memory:
    """Return the section: ``counted`` is of the workload itself, ``predicted`` was known before.

    ``peak_increment_bytes`` is the peak above inputs, weights and state: temporaries, outputs and, for
    ``bwd``, the graph. ``state_bytes`` are those of the tensors that a decoding state for the whole context
    holds. On CUDA the workload is called once more, as it is measured, and the allocator's peak
    replaces the count; what it cannot tell goes to ``unavailable``.
    """
    section = Memory()
    if predicted is not None:
        section.predicted_peak_bytes = predicted.call_peak_bytes
        section.predicted_peak_backend = predicted.backend
    if counted is not None:
        section.peak_bytes = counted.call_peak_bytes
        section.peak_increment_bytes = counted.call_peak_bytes - counted.resident_bytes
        section.backend = "tensor-lifetimes"
    if workload.device.type == "cuda":
        ask_allocator(workload, section, {} if unavailable is None else unavailable)
    if workload.state is not None:
        section.state_bytes = sum(x.numel() * x.element_size() for x in tensors_of(workload.state))
    return section
