"""What timers share: the calls they are given, the samples they give back, a collector that stays away."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from .stopping import StoppingRule

Clock = Callable[[], int]
"""Nanoseconds since some fixed moment."""

HOST_CLOCK: Clock = time.perf_counter_ns


class UnusableTimerError(Exception):
    """A timer can't time this task here; the message says why, and another timer may."""


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class Copies:
    """The same call on copies of its tensors: ``make(n)`` returns ``n`` calls, each with ``bytes_each``."""

    bytes_each: int
    make: Callable[[int], list[Callable[[], Any]]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to time: ``prepare()``, untimed, before every ``call()``.

    Where ``repeatable``, calls may follow each other without it. ``settled()`` is told when the machine has
    warmed up and samples begin. ``copies`` are there where calls can be captured.
    """

    call: Callable[[], Any]
    prepare: Callable[[], None]
    repeatable: bool
    settled: Callable[[], None] = nothing
    copies: Copies | None = None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Time per call of every sample, and of the very first call, which compiles and tunes.

    ``samples_ms`` is empty if the call is too short for the timer. ``passed_over`` names better timers, each
    with the reason why it was not used.
    """

    samples_ms: list[float]
    first_call_s: float
    below_resolution: bool
    passed_over: Mapping[str, str] = field(default_factory=dict)

    def say_passed_over(self, section: str, unavailable: dict[str, str]) -> None:
        """Name the better timers among what is unavailable, as ``section.timer``."""
        unavailable.update({f"{section}.{name}": why for name, why in self.passed_over.items()})


class Timer(Protocol):
    """Times a task until the rule is content."""

    @property
    def name(self) -> str:
        """What is read."""

    @property
    def cache(self) -> str:
        """``cold``: the last-level cache is flushed before each sample; ``warm``: it is not."""

    def time(self, task: Task, rule: StoppingRule, warmup_s: float) -> Timing:
        """Warm up for at least ``warmup_s`` and one call, then sample.

        Raises:
            UnusableTimerError: not this task, or not here.
        """


class Stream(Protocol):
    """A queue of work with a clock of its own."""

    def flush(self) -> None:
        """Queue a write larger than the last-level cache, where the stream can."""

    def mark(self) -> Any:
        """Queue a time stamp."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return the time between two marks, after a synchronisation."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""


@dataclass(frozen=True)
class HostStream:
    """The processor, where work is done as soon as it is queued. Caches stay as they are."""

    clock: Clock = HOST_CLOCK

    def flush(self) -> None:
        """Do nothing."""

    def mark(self) -> int:
        """Return the time in nanoseconds."""
        return self.clock()

    def elapsed_ms(self, start: int, end: int) -> float:
        """Return the milliseconds between two marks."""
        return (end - start) * 1e-6

    def synchronize(self) -> None:
        """Do nothing."""


@contextmanager
def collector_off() -> Iterator[None]:
    """Collect garbage now, and not while a sample is taken."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
