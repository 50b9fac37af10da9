"""Peak memory on a CUDA device: what its caching allocator and NVML say. In: a workload. Out: the section,
filled.

The allocator counts tensors and nothing else. What libraries, kernels and the CUDA context take beside it is
in ``process_bytes`` alone, which NVML tells in steps of 2 MiB and which holds the allocator's whole cache
too.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.device import nvml

from .counting import CUDA_GRANULARITY
from .record import Memory
from .telemetry import uuid_of
from .workload import Workload

BACKEND = "cuda-allocator"
REQUESTED = "requested_bytes.all"


@dataclass(frozen=True, kw_only=True)
class Allocator:
    """A device's memory: the functions of `torch.cuda` without the device, and the bytes of this process."""

    synchronize: Callable[[], None]
    empty_cache: Callable[[], None]
    reset_peaks: Callable[[], None]
    stats: Callable[[], dict[str, Any]]
    process_bytes: Callable[[], int | str]


def cuda_allocator(device: torch.device) -> Allocator:
    """Return that of a CUDA device."""
    uuid = uuid_of(device)
    return Allocator(
        synchronize=lambda: torch.cuda.synchronize(device),
        empty_cache=torch.cuda.empty_cache,
        reset_peaks=lambda: torch.cuda.reset_peak_memory_stats(device),
        stats=lambda: torch.cuda.memory_stats(device),
        process_bytes=lambda: nvml.process_bytes(uuid, os.getpid()),
    )


def ask_allocator(
    workload: Workload, section: Memory, unavailable: dict[str, str], *, allocator: Allocator | None = None
) -> None:
    """Call once more and fill in the allocator's peaks, in its blocks and as requested, and what it reserved.

    Increments are over what was there before ``prepare``; peaks add the workload's own tensors to them, so
    that nothing else that the process holds is in them.
    """
    memory = allocator or cuda_allocator(workload.device)
    with workload.environment():
        memory.synchronize()
        memory.empty_cache()
        before = memory.stats()
        workload.prepare()
        memory.reset_peaks()
        outputs = workload.call()
        memory.synchronize()
        process = memory.process_bytes()
        del outputs
    after, storages = memory.stats(), _storage_bytes(workload.resident())
    increment = after["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"]
    section.peak_increment_bytes = increment
    section.peak_bytes = increment + sum(-(-n // CUDA_GRANULARITY) * CUDA_GRANULARITY for n in storages)
    if f"{REQUESTED}.peak" in after:
        requested = after[f"{REQUESTED}.peak"] - before[f"{REQUESTED}.current"]
        section.requested_increment_bytes = requested
        section.requested_peak_bytes = requested + sum(storages)
    else:
        unavailable["memory.requested_peak_bytes"] = "this allocator does not keep what it was asked for"
    section.reserved_bytes = after["reserved_bytes.all.peak"]
    if isinstance(process, int):
        section.process_bytes = process
    else:
        unavailable["memory.process_bytes"] = process
    section.backend = BACKEND


def _storage_bytes(tensors: list[Tensor]) -> list[int]:
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return list(storages.values())
