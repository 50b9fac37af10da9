"""Energy of one call on a GPU, from the board's own counter. In: a workload. Out: joules, or why there are
none.

The call is repeated for a second or more, without a flush, and the counter's growth is divided by the number
of calls: a warm cache, launches by the host as they come. The counter is of the whole board, so that what it
uses while idle is in the result, and for a call shorter than its launch most of it is. On a CPU there is no
such counter that a process without privileges may read.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnbench.device import nvml

from .telemetry import uuid_of
from .timing import HOST_CLOCK, Clock
from .workload import Workload

LEAST_S = 1.0
SYNCHRONISE_EVERY_S = 0.02
"""How far the host may run ahead: little beside the second, much beside a synchronisation."""
MOST_QUEUED = 1000
"""CUDA's queue of launches holds about a thousand; beyond it the host waits anyway."""


@dataclass(frozen=True, kw_only=True)
class Meter:
    """A device that counts its energy: ``read_j`` since some moment; ``synchronize`` waits for its work."""

    read_j: Callable[[], float | None]
    synchronize: Callable[[], None]
    clock: Clock = HOST_CLOCK


def cuda_meter(device: torch.device) -> Meter:
    """Return that of a CUDA device."""
    uuid = uuid_of(device)
    return Meter(read_j=lambda: nvml.energy_j(uuid), synchronize=lambda: torch.cuda.synchronize(device))


def measure_energy(
    workload: Workload, unavailable: dict[str, str], *, meter: Meter | None = None
) -> float | None:
    """Return the joules of one call; None goes with a reason in ``unavailable``."""
    name = "telemetry.energy_per_call_j"
    if meter is None and workload.device.type != "cuda":
        unavailable[name] = "a processor's energy counters are for root alone"
        return None
    if not workload.repeatable:
        unavailable[name] = "calls can't follow each other: the energy of what prepares them would count too"
        return None
    meter = meter or cuda_meter(workload.device)
    with workload.environment():
        joules = _per_call_j(workload.call, meter)
    if joules is None:
        unavailable[name] = "this GPU does not count its energy (before Volta, or a part of one)"
    return joules


def _per_call_j(call: Callable[[], object], meter: Meter) -> float | None:
    call()
    meter.synchronize()
    began = meter.clock()
    call()
    meter.synchronize()
    call_s = max((meter.clock() - began) * 1e-9, 1e-9)
    queued = max(1, min(MOST_QUEUED, int(SYNCHRONISE_EVERY_S / call_s)))
    before, began, calls = meter.read_j(), meter.clock(), 0
    if before is None:
        return None
    while calls == 0 or (meter.clock() - began) * 1e-9 < LEAST_S:
        for _ in range(queued):
            call()
        meter.synchronize()
        calls += queued
    after = meter.read_j()
    return None if after is None else (after - before) / calls
