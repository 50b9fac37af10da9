"""What operators allocate inside themselves. In: a workload and the counts of its call. Out: bytes.

Tensor lifetimes see what goes in and out of operators; the kernel's high-water mark of the process sees all.
hidden = (high-water mark - memory before the call) - (peak of the call's tensors - tensors before the call)
"""

import torch

from attnbench.device.high_water import RESOLUTION_BYTES, NoHighWaterError, peak_increment_bytes

from .counting import UNSEEN, Counts
from .workload import Workload

FURTHER_CALLS = 3
FIELD = "memory.hidden_workspace_bytes"


def hidden_workspace_bytes(
    workload: Workload, counts: Counts | None, unavailable: dict[str, str]
) -> int | None:
    """Call again and return the bytes beyond the call's tensors, 0 below the resolution of the mark.

    None where it can't be had; ``unavailable`` then says why. Where something is found, it is the least of
    several calls.
    """
    reason = _why_not(workload, counts)
    if reason is not None or counts is None:
        unavailable[FIELD] = reason or UNSEEN
        return None
    tensor_bytes = counts.call_peak_bytes - counts.prepared_bytes
    try:
        hidden = _growth_bytes(workload) - tensor_bytes
        for _ in range(FURTHER_CALLS):  # what code loaded late or another thread adds, it adds once
            if hidden > RESOLUTION_BYTES:
                hidden = min(hidden, _growth_bytes(workload) - tensor_bytes)
    except NoHighWaterError as error:
        unavailable[FIELD] = str(error)
        return None
    if hidden < -RESOLUTION_BYTES:
        unavailable[FIELD] = f"the process grew by {-hidden} bytes less than the tensors of the call need"
        return None
    return hidden if hidden > RESOLUTION_BYTES else 0


def _growth_bytes(workload: Workload) -> int:
    """Return what one call adds to the process at its peak."""
    threads = torch.get_num_threads()

    def prepare() -> None:
        torch.set_num_threads(threads)  # a property of each thread that calls PyTorch
        with workload.environment():
            workload.prepare()

    def work() -> object:
        with workload.environment():
            return workload.call()

    return peak_increment_bytes(prepare, work)


def _why_not(workload: Workload, counts: Counts | None) -> str | None:
    if counts is None:
        return UNSEEN
    if workload.device.type != "cpu":
        return "the process's memory is the CPU's; the allocator's peak holds what operators allocate in it"
    if workload.interpreted:
        return "the process holds Triton's interpreter"
    return None
