"""What timers share: the calls they are given, the samples they give back, a collector that stays away."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from .stopping import StoppingRule

Clock = Callable[[], int]
"""Nanoseconds since some fixed moment."""

HOST_CLOCK: Clock = time.perf_counter_ns


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to time: ``prepare()``, untimed, before every ``call()``.

    Where ``repeatable``, calls may follow each other without it.
    """

    call: Callable[[], Any]
    prepare: Callable[[], None]
    repeatable: bool


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Time per call of every sample, and of the very first call, which compiles and tunes.

    ``samples_ms`` is empty if the call is too short for the timer.
    """

    samples_ms: list[float]
    first_call_s: float
    below_resolution: bool


class Timer(Protocol):
    """Times a task until the rule is content."""

    @property
    def name(self) -> str:
        """What is read."""

    @property
    def cache(self) -> str:
        """``cold``: the last-level cache is flushed before each sample; ``warm``: it is not."""

    def time(self, task: Task, rule: StoppingRule, warmup_s: float) -> Timing:
        """Warm up for at least ``warmup_s`` and one call, then sample."""


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
