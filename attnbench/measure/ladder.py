"""Which timer a call on a GPU gets. In: a task. Out: its samples, by the best timer that works for it.

1. Activity records of CUPTI, where they can be had.
2. A CUDA graph, for calls of less than 20 µs, where launching by the host would be part of the time.
3. Events around each call.

Which one it was stands in ``latency.timer``, and why none above it in ``unavailable``.
"""

import dataclasses
from dataclasses import dataclass

from .stopping import StoppingRule, quantile
from .timing import Task, Timer, Timing, UnusableTimerError

SHORT_MS = 0.02
ESTIMATE = StoppingRule(min_samples=10, max_samples=10, budget_s=0.05)


@dataclass
class Ladder:
    """Tries one timer after the other; its ``name`` is that of the one whose samples it gave last."""

    activity: Timer
    graph: Timer
    events: Timer
    first: str | None = None
    """The names of timers, the best of which is tried before all others: launches of one case are to be read
    from one clock.
    """
    used: Timer | None = None

    @property
    def name(self) -> str:
        """The name of the timer that was used."""
        return (self.used or self.events).name

    @property
    def cache(self) -> str:
        """The same for all of them."""
        return self.events.cache

    def time(self, task: Task, rule: StoppingRule, warmup_s: float) -> Timing:
        """Time the task with the first timer that can."""
        passed_over: dict[str, str] = {}
        wanted = (self.first or "").split(", ")
        named = [timer for timer in (self.activity, self.graph, self.events) if timer.name in wanted][:1]
        timing = self._try(named[0], task, rule, warmup_s, passed_over) if named else None
        if timing is None and self.activity not in named:
            timing = self._try(self.activity, task, rule, warmup_s, passed_over)
        if timing is None and self.graph not in named and self._is_short(task):
            timing = self._try(self.graph, task, rule, warmup_s, passed_over)
        if timing is None:
            self.used = self.events
            timing = self.events.time(task, rule, warmup_s)
        return dataclasses.replace(timing, passed_over=passed_over)

    def _try(
        self, timer: Timer, task: Task, rule: StoppingRule, warmup_s: float, passed_over: dict[str, str]
    ) -> Timing | None:
        try:
            timing = timer.time(task, rule, warmup_s)
        except UnusableTimerError as reason:
            passed_over[timer.name] = str(reason)
            return None
        self.used = timer
        return timing

    def _is_short(self, task: Task) -> bool:
        few = self.events.time(task, ESTIMATE, 0.0).samples_ms
        return not few or quantile(few, 0.5) < SHORT_MS
