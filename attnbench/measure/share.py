"""What part of a block or a model is its mixers'. In: a workload and the counts of its call. Out: three
fractions, of one call as the mode has it, backward pass included.

The mixers' is all that happens inside them: self- and cross-attention with their projections and positions.
``flops_fraction``: of the executed FLOPs. ``memory_fraction``: the most bytes that tensors made inside mixers
hold at one time, over the most that all tensors made by the call do, from tensor lifetimes on every device.
``latency_fraction``: of the time of a call, that between the borders of its mixers.

The two peaks of memory need not fall together: a feed-forward network may reach the higher one after the
mixer's tensors have gone. What lives at the call's peak alone would be nothing there, and all of it a length
further.

The borders' times are read in the very calls that are timed as a whole, so that numerator and denominator
share caches, clocks and disturbances, and no fraction can pass 1. A mixer replayed by itself would find its
inputs in another cache, and would have no backward pass of the whole to stand in.
"""

from typing import Any

from attnbench.plan.settings import MeasureSettings

from .borders import Inside, borders
from .counting import UNSEEN, Counts
from .cuda_timer import CudaStream
from .flops import NothingCountedError, executed_flops
from .record import Share
from .stopping import StoppingRule, quantile
from .timing import HostStream, Stream, collector_off
from .workload import Workload

MOST_SAMPLES = 30
LONG_CALL_MS = 1000.0
"""A call beyond it is its own sample: what the first one pays for once is little of it."""


def measure_share(workload: Workload, counted: Counts | None, unavailable: dict[str, str]) -> Share | None:
    """Return the section without its latency, None at level ``attention``, which is nothing but a mixer.

    What cannot be had goes to ``unavailable``, with the reason.
    """
    if workload.module is None:
        return None
    if workload.compiled:
        unavailable["share"] = "a compiled call has no borders between its mixers and the rest"
        return None
    section = Share()
    if counted is None:
        unavailable["share.memory_fraction"] = unavailable["share.flops_fraction"] = UNSEEN
        return section
    made_bytes = counted.call_peak_bytes - counted.resident_bytes
    if made_bytes > 0:
        section.memory_fraction = counted.mixer_peak_bytes / made_bytes
    else:
        unavailable["share.memory_fraction"] = "the call makes no tensors"
    try:
        flops = executed_flops(workload, counted)
        # Kernels with FLOPs in closed form stand inside mixers alone.
        section.flops_fraction = (counted.mixer_flops + flops - counted.flops) / flops
    except NothingCountedError as reason:
        unavailable["share.flops_fraction"] = str(reason)
    except ZeroDivisionError:
        unavailable["share.flops_fraction"] = "the call performs no FLOPs"
    return section


def latency_fraction(workload: Workload, settings: MeasureSettings, *, stream: Stream | None = None) -> float:
    """Return the mixers' part of the time of a call, the median over at least three behind an unmeasured one.

    Of a call of more than ``LONG_CALL_MS`` there is one, and it is measured.
    """
    if workload.module is None:
        raise TypeError("level 'attention' has no module")
    if stream is None:
        on_cuda = workload.device.type == "cuda"
        stream = CudaStream(workload.device) if on_cuda else HostStream()
    budget_s = settings.latency_budget_s / 2
    rule = StoppingRule(min_samples=settings.min_samples, max_samples=MOST_SAMPLES, budget_s=budget_s)
    marks: list[Any] = []
    inside = Inside(at_border=lambda: marks.append(stream.mark()))
    fractions: list[float] = []
    spent_ms = 0.0
    with borders(workload.module, inside.enter, inside.leave), workload.environment(), collector_off():
        first, first_ms = _fraction(workload, stream, marks)
        if first_ms > LONG_CALL_MS:
            return first
        while not rule.enough(fractions, spent_ms * 1e-3):
            fraction, whole_ms = _fraction(workload, stream, marks)
            fractions.append(fraction)
            spent_ms += whole_ms
    return quantile(fractions, 0.5)


def _fraction(workload: Workload, stream: Stream, marks: list[Any]) -> tuple[float, float]:
    """Call once: the mixers' part, and the milliseconds of the whole."""
    workload.prepare()
    if workload.case.cache == "cold":
        stream.flush()
    marks.clear()
    start = stream.mark()
    outputs = workload.call()
    end = stream.mark()
    stream.synchronize()
    del outputs
    whole_ms = stream.elapsed_ms(start, end)
    pairs = zip(marks[::2], marks[1::2], strict=True)
    return sum(stream.elapsed_ms(*pair) for pair in pairs) / whole_ms, whole_ms
