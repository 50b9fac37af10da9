"""Whether a latency is possible at all. In: a workload, its record, the device's ceilings. Out: the latency,
and the arithmetic if it beats a ceiling.

A call can't be faster than the least that it must do at the highest rate that the device was seen to do it:

- its products: useful FLOPs at the rate of a large product. Of a 16-bit case also at that of a wider type,
  into which it may convert; of float32 also at a third of TF32's, since three of those give its accuracy.
- its bytes: compulsory bytes at the fastest bandwidth, but for those that a cache may spare. Where the cache
  is flushed before a call, that is only what the call writes, which may stay there; elsewhere, anything.

Exponentials are no bound: they may be replaced by polynomials, which need no unit of their own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from attnbench.contract.cost import compulsory_bytes, tensor_bytes
from attnbench.contract.problem import Problem
from attnbench.device.rates import product_rate
from attnbench.plan.settings import MeasureSettings

from .ceilings import Ceilings, measure_ceilings
from .latency import measure_latency
from .record import Latency, Record, Telemetry
from .timing import Timer
from .workload import Workload

SLACK = 1.05
"""A ceiling is beaten by what is this much faster."""


@dataclass(frozen=True)
class Bound:
    """Something that a call must do, and the rate at which the device does it."""

    amount: float
    unit: str
    per_s: float
    what: str

    @property
    def floor_ms(self) -> float:
        """The least milliseconds that it takes."""
        return self.amount / self.per_s * 1e3

    def words(self, median_ms: float) -> str:
        """Return the arithmetic of a latency that is faster."""
        reached = self.amount / median_ms * 1e3
        return (
            f"{median_ms:.3g} ms for at least {_amount(self.amount)}{self.unit} is "
            f"{_amount(reached)}{self.unit}/s, {reached / self.per_s:.2f} times the "
            f"{_amount(self.per_s)}{self.unit}/s measured of {self.what}"
        )


def measure_plausible_latency(
    workload: Workload,
    settings: MeasureSettings,
    *,
    record: Record,
    ceilings: Ceilings | None,
    timer: Timer | None = None,
    again: Callable[[torch.device], Ceilings] | None = None,
) -> tuple[Latency, Telemetry]:
    """Measure the latency. One that beats a ceiling is measured once more, and the ceilings with it, since
    either may have been disturbed; if it still does, its verdict is ``implausible``.

    Args:
        workload: what to time.
        settings: for how long.
        record: the case's, with what is known of its FLOPs; why it has no floor is noted there.
        ceilings: of the workload's device; None: nothing is held against them.
        timer: instead of the device's.
        again: measures the ceilings of a device anew.
    """
    latency, telemetry = measure_latency(workload, settings, timer=timer, unavailable=record.unavailable)
    if ceilings is None:
        return latency, telemetry
    reason = _unusable(ceilings)
    bound = None if reason else _highest(workload, record, latency, ceilings)
    if bound is None:
        record.unavailable["latency.floor_ms"] = reason or "no measured ceiling bounds this call"
        return latency, telemetry
    if latency.median_ms and latency.median_ms < bound.floor_ms / SLACK:
        anew = (again or _measured_again(workload))(workload.device)
        bound = _highest(workload, record, latency, ceilings.or_faster(anew)) or bound
        latency, telemetry = measure_latency(
            workload,
            settings,
            timer=timer,
            plausible_floor_ms=bound.floor_ms / SLACK,
            unavailable=record.unavailable,
        )
        if latency.median_ms and "implausible" in (latency.verdict or []):
            latency.implausible = bound.words(latency.median_ms)
    latency.floor_ms = bound.floor_ms
    return latency, telemetry


def _unusable(ceilings: Ceilings) -> str | None:
    """Return why nothing can be held against these ceilings."""
    if "ceilings" in ceilings.unavailable:
        return ceilings.unavailable["ceilings"]
    if ceilings.threads not in (None, torch.get_num_threads()):
        return f"the ceilings are those of {ceilings.threads} threads, not of {torch.get_num_threads()}"
    if "shared" in ceilings.verdict:
        return "other processes disturbed the measurement of the ceilings"
    return None


def _measured_again(workload: Workload) -> Callable[[torch.device], Ceilings]:
    return partial(measure_ceilings, dtypes=(workload.case.dtype,))


def _highest(workload: Workload, record: Record, latency: Latency, ceilings: Ceilings) -> Bound | None:
    """Return the bound that takes longest."""
    found = [bound for bound in _bounds(workload, record, latency, ceilings) if bound.amount > 0]
    return max(found, key=lambda bound: bound.floor_ms, default=None)


def _bounds(workload: Workload, record: Record, latency: Latency, ceilings: Ceilings) -> Iterator[Bound]:
    product = product_rate(ceilings.matmul_flops_per_s, workload.case.dtype)
    if product is not None:
        name, flops_per_s = product
        yield Bound(_least_flops(workload, record), "FLOP", flops_per_s, f"products in {name}")
    bytes_per_s = ceilings.memory_bytes_per_s
    if bytes_per_s is not None and workload.level == "attention" and ceilings.cache_bytes is not None:
        problem = workload.problem
        least_bytes, written = workload.attentions[0].least_bytes, _written_bytes(problem)
        # What needs no more than a state states less than the problem; it writes no more than it reads.
        if least_bytes < compulsory_bytes(problem):
            written = max(written, least_bytes // 2)
        spared = min(ceilings.cache_bytes, written) if latency.cache == "cold" else ceilings.cache_bytes
        yield Bound(least_bytes - spared, "B", bytes_per_s, "memory")


def _least_flops(workload: Workload, record: Record) -> float:
    """Return what a call can't do without: of a block or model, its attentions' useful FLOPs and what was
    executed outside its mixers.
    """
    least: float = sum(one.layers * one.least_flops for one in workload.attentions)
    if workload.level == "attention":
        return least
    executed = None if record.flops is None else record.flops.executed
    inside = None if record.share is None else record.share.flops_fraction
    if executed is not None and inside is not None:
        least += executed * (1 - inside)
    return least


def _written_bytes(problem: Problem) -> int:
    whole = tensor_bytes(problem)
    forward, backward = whole["out"], whole["q"] + whole["k"] + whole["v"]
    return {"bwd": backward, "fwd_bwd": forward + backward}.get(problem.mode, forward)


def _amount(value: float) -> str:
    """Return three significant digits and a decimal prefix."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
