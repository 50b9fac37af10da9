"""Whether a latency can be trusted. In: samples, what the machine did meanwhile. Out: the verdicts."""

from collections.abc import Iterable, Sequence

from attnbench.device.activity import Activity

from .stopping import Interval, quantile, relative_half_width

ORDER = ("below_resolution", "few_samples", "noisy", "shared", "throttled", "implausible")
RELIABLE_SAMPLES = 6
"""With fewer, no interval of the median of one launch reaches 95 %."""
NOISY = 0.05
"""Relative half-width of the median's interval from which on the median is called noisy."""
WAITED = 0.02
"""Part of the time that the thread may have been ready without getting a core."""
SPARE_CORES = 0.1
"""Processor time of others, in cores, that every machine uses for itself."""
CLOCK_DRIFT = 0.05
"""Change of the SM clock between warm-up and last sample from which on they were not taken at one speed."""
SLICE_MS = 4.0
SLICE_TOLERANCE_MS = 0.12
"""The scheduler's tick on most distributions (250 Hz); a thread put aside returns after whole ones."""


def judge(
    samples_ms: Sequence[float],
    activity: Activity,
    *,
    threads: int,
    cores: int,
    below_resolution: bool = False,
    throttle_reasons: Sequence[str] = (),
    clock_drift: float | None = None,
    other_processes: int = 0,
    plausible_floor_ms: float | None = None,
) -> list[str]:
    """Return ``["valid"]``, or everything that speaks against the latency.

    ``threads`` is how many this process computes with, ``cores`` how many it may use. ``clock_drift`` is the
    relative change of a GPU's clock, up or down; ``other_processes`` are those that hold it too, whatever
    they do there. ``plausible_floor_ms`` is the time that the hardware's peak would need.
    """
    if below_resolution or not samples_ms:
        return ["below_resolution"]
    found = {
        "few_samples": len(samples_ms) < RELIABLE_SAMPLES,
        "noisy": relative_half_width(samples_ms) > NOISY,
        "shared": other_processes > 0 or was_shared(samples_ms, activity, threads=threads, cores=cores),
        "throttled": bool(throttle_reasons) or abs(clock_drift or 0.0) > CLOCK_DRIFT,
        "implausible": plausible_floor_ms is not None and quantile(samples_ms, 0.5) < plausible_floor_ms,
    }
    return [name for name, holds in found.items() if holds] or ["valid"]


def as_shared(verdict: Sequence[str] | None) -> list[str]:
    """Return a verdict to which it is added that the device was another run's, too."""
    others = [name for name in verdict or () if name not in ("valid", "shared")]
    return [*others, "shared"]


def joined_verdict(
    of_launches: Iterable[str], *, samples: int, median_ms: float | None, interval: Interval | None
) -> list[str]:
    """Return the verdict over several launches: everything that speaks against one of them.

    But for how many samples there are and how far they scatter, which is judged anew: by the ``interval``
    over launches where there is one, which a few samples a launch are enough for.
    """
    words = {word for word in of_launches if word not in ("valid", "few_samples", "noisy")}
    if median_ms is not None and interval is None and samples < RELIABLE_SAMPLES:
        words.add("few_samples")
    if (
        median_ms is not None
        and interval is not None
        and interval.high - interval.low > 2 * NOISY * median_ms
    ):
        words.add("noisy")
    return [word for word in ORDER if word in words] or ["valid"]


def was_shared(samples_ms: Sequence[float], activity: Activity, *, threads: int, cores: int) -> bool:
    """Say whether other processes slowed this one.

    Either its main thread waited for a core; or it was put aside while its threads and the others' work
    together needed more cores than there are (worker threads then wait, and the main thread for them,
    spinning); or, with others at work, the samples are whole slices of the scheduler. A busy neighbour on a
    spare core is none of these.
    """
    foreign_cores = (activity.foreign_cpu_s or 0.0) / activity.wall_s if activity.wall_s > 0 else 0.0
    waited = (activity.runqueue_wait_s or 0.0) > WAITED * activity.wall_s
    crowded = threads + foreign_cores > cores + SPARE_CORES and activity.involuntary_switches > 0
    return waited or crowded or (foreign_cores > SPARE_CORES and _whole_slices(samples_ms))


def _whole_slices(samples_ms: Sequence[float]) -> bool:
    """Say whether most samples last a whole number of slices, one at least."""
    whole = [
        round(sample / SLICE_MS) >= 1
        and abs(sample - round(sample / SLICE_MS) * SLICE_MS) <= SLICE_TOLERANCE_MS
        for sample in samples_ms
    ]
    return 2 * sum(whole) > len(whole)
