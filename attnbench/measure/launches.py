"""Several launches of one case become one latency. In: what each launch, a process of its own, measured. Out:
the section over all of them. Loads no torch.

Samples of one process share its memory layout, its place on the machine and that machine's mood, so that
their spread says little about what the next process would measure; the spread between launches does.
"""

import math
import statistics
from collections.abc import Sequence
from functools import cache
from itertools import islice
from typing import TypeVar

import msgspec

from .record import Latency, Record, Telemetry, one_line, record_from_dict
from .stopping import CONFIDENCE_PERCENT, Interval, median_interval, quantile
from .verdicts import joined_verdict

ONE_LAUNCH = "one launch: the interval is over the medians of several"
_OUTER = ("latency.ci95_low_ms", "latency.ci95_high_ms")
_BISECTIONS = 60
TIMERS = ", "
"""Between the names of timers, where launches were timed by several."""
Number = TypeVar("Number", int, float)


@cache
def student_t(degrees: int) -> float:
    """Return t with P(-t <= T <= t) = 95 % for Student's distribution of ``degrees`` degrees of freedom.

    By bisection of its distribution function, which is a finite sum for whole degrees; the process that runs
    the cases need not load scipy for it.
    """
    low, high = 0.0, 13.0  # 12.71 at one degree is the largest
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = 100 * _within(middle, degrees) < CONFIDENCE_PERCENT
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """Return P(-t <= T <= t): Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3, 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term, terms = (math.cos(angle) if odd else 1.0), 0.0
    for k in range(2 + odd, degrees + 1, 2):
        terms += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    return 2 / math.pi * (angle + math.sin(angle) * terms) if odd else math.sin(angle) * terms


def launch_interval(medians: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of the median that another launch would have, None for fewer than two.

    ``exp(mean ± t s / √n)`` with mean and standard deviation ``s`` of ``log(median)`` over ``n`` launches and
    ``t`` of ``n - 1`` degrees of freedom. What disturbs a launch slows it down by a factor, so the logarithms
    are what is near to normal, and the interval, of the distribution's median, never reaches 0.
    """
    if len(medians) < 2:
        return None
    logs = [math.log(median) for median in medians]
    centre = statistics.fmean(logs)
    half = student_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    middle = statistics.median(medians)
    # From ten launches on the median of the launches can lie outside the interval round their mean.
    return Interval(min(math.exp(centre - half), middle), max(math.exp(centre + half), middle))


def latency_of(
    samples_ms: Sequence[Sequence[float]],
    *,
    timer: str | None,
    cache: str | None,
    verdict: list[str],
    compile_s: float | None = None,
) -> Latency:
    """Return the section of launches with these samples each; one below the timer's resolution has none.

    ``median_ms`` is the median of the launches' medians, ``ci95_*`` their `launch_interval`; ``p10_ms``,
    ``p90_ms`` and ``inner_ci95_*``, the distribution-free interval of the median, are of all samples.
    """
    section = Latency(
        launches=len(samples_ms), timer=timer, cache=cache, verdict=verdict, compile_s=compile_s
    )
    together = [sample for launch in samples_ms for sample in launch]
    if not together:
        return section
    medians = [quantile(launch, 0.5) for launch in samples_ms if launch]
    section.samples_ms, section.samples_per_launch = together, [len(launch) for launch in samples_ms]
    section.launch_medians_ms, section.median_ms = medians, quantile(medians, 0.5)
    section.p10_ms, section.p90_ms = quantile(together, 0.1), quantile(together, 0.9)
    section.inner_ci95_low_ms, section.inner_ci95_high_ms = median_interval(together)
    outer = launch_interval(medians)
    if outer is not None:
        section.ci95_low_ms, section.ci95_high_ms = outer
    return section


def joined_latency(before: Latency, launch: Latency) -> Latency:
    """Return the section of the launches so far and one more; the time to compile stays that of the first."""
    section = latency_of(
        [*_by_launch(before), *_by_launch(launch)],
        timer=_either(before.timer, launch.timer),
        cache=before.cache,
        verdict=[],
        compile_s=before.compile_s,
    )
    # A launch that repeats the first is held against no ceiling anew.
    section.floor_ms, section.implausible = before.floor_ms, before.implausible
    section.verdict = joined_verdict(
        [*(before.verdict or ()), *(launch.verdict or ())],
        samples=len(section.samples_ms or ()),
        median_ms=section.median_ms,
        interval=launch_interval(section.launch_medians_ms or ()),
    )
    return section


def join_launch(record: Record, launch: Record, number: int) -> Record:
    """Return the record of a case after its launch ``number``, which may have gone wrong.

    Then the case has that launch's status and no speed: what is right, or alive, four times of five is
    neither. What else was found out about the case stays.
    """
    joined = record_from_dict(record.to_dict())
    if joined.provenance is not None and launch.provenance is not None:
        joined.provenance.work_s = _sum(joined.provenance.work_s, launch.provenance.work_s)
    status, reason = launch.status, launch.reason
    if status == "ok" and _source(record) != _source(launch):
        status, reason = "error", "the source of the implementation is not that of the first launch any more"
    if status == "ok" and launch.latency is None:
        status, reason = "error", "it has no latency"
    if status != "ok":
        joined.status, joined.reason = status, one_line(f"in launch {number}: {reason}")
        joined.forget_speed()
    elif joined.latency is not None and launch.latency is not None:
        joined.latency = joined_latency(joined.latency, launch.latency)
        for name, why in launch.unavailable.items():
            joined.unavailable.setdefault(name, f"in launch {number}: {why}")
        joined.telemetry = _joined_telemetry(joined.telemetry, launch.telemetry)
        for name in Telemetry.__struct_fields__:
            if getattr(joined.telemetry, name, None) is not None:
                joined.unavailable.pop(f"telemetry.{name}", None)
    if joined.latency is None or joined.latency.ci95_low_ms is not None:
        for name in _OUTER:
            joined.unavailable.pop(name, None)
    return joined


def say_what_one_launch_lacks(record: Record) -> None:
    """Name the interval over launches among what is unavailable, until there are two of them."""
    if record.latency is not None and record.latency.median_ms is not None:
        record.unavailable |= dict.fromkeys(_OUTER, ONE_LAUNCH)


def _by_launch(latency: Latency) -> list[list[float]]:
    samples = iter(latency.samples_ms or ())
    counts = latency.samples_per_launch or [len(latency.samples_ms or ())]
    return [list(islice(samples, count)) for count in counts]


def _joined_telemetry(before: Telemetry | None, launch: Telemetry | None) -> Telemetry | None:
    """Add up what is counted; clocks, power and temperature are those of the latest launch."""
    if before is None or launch is None:
        return launch or before
    joined = msgspec.structs.replace(before)
    for name in launch.__struct_fields__:
        value = getattr(launch, name)
        if value is not None:
            setattr(joined, name, value)
    joined.context_switches = _sum(before.context_switches, launch.context_switches)
    joined.foreign_cpu_s = _sum(before.foreign_cpu_s, launch.foreign_cpu_s)
    reasons = [*(before.throttle_reasons or ()), *(launch.throttle_reasons or ())]
    if joined.throttle_reasons is not None:
        joined.throttle_reasons = sorted(set(reasons))
    if before.other_processes is not None and launch.other_processes is not None:
        joined.other_processes = max(before.other_processes, launch.other_processes)
    return joined


def _either(timer: str | None, another: str | None) -> str | None:
    """Return the names of both timers, which may be one."""
    names = [*(timer or "").split(TIMERS), another or ""]
    return TIMERS.join(dict.fromkeys(filter(None, names))) or None


def _source(record: Record) -> str | None:
    return None if record.provenance is None else record.provenance.source_hash


def _sum(first: Number | None, second: Number | None) -> Number | None:
    return second if first is None else first if second is None else first + second
