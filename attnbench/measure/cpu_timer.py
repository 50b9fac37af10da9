"""The timer for CPUs. In: a task. Out: samples, each of enough calls to tower above the clock's steps."""

import itertools
from dataclasses import dataclass

from .stopping import StoppingRule
from .timing import HOST_CLOCK, Clock, Task, Timing, collector_off

READINGS = 1000
WANTED_TICKS = 1000
WANTED_NS = 100_000
"""A sample lasts at least this long, which also buries the cost of reading the clock."""
NEEDED_TICKS = 100
"""Below this, the clock's steps alone are 1 % of a sample."""
MAX_LOOPS = 4096


def resolution_ns(clock: Clock) -> int | None:
    """Return the smallest step of the clock that successive readings show; ``None`` if it stands still."""
    readings = [clock() for _ in range(READINGS)]
    steps = [after - before for before, after in itertools.pairwise(readings) if after > before]
    return min(steps, default=None)


@dataclass(frozen=True)
class CpuTimer:
    """Reads the host's clock around each sample. Caches are left as the previous call left them."""

    clock: Clock = HOST_CLOCK
    name: str = "perf_counter"
    cache: str = "warm"

    def time(self, task: Task, rule: StoppingRule, warmup_s: float) -> Timing:
        """Warm up, find how many calls a sample needs, then sample."""
        with collector_off():
            began = self.clock()
            first_ns = latest_ns = self._sample(task, 1)
            stood = 0  # a clock that stands still would never let the warm-up end
            while (self.clock() - began) * 1e-9 < warmup_s and stood < READINGS:
                latest_ns = self._sample(task, 1)
                stood = 0 if latest_ns > 0 else stood + 1
            loops = self._loops(task, latest_ns)
            # A call that takes the whole budget needs no warm-up, and few of it are dear enough.
            dear_s = max(rule.budget_s if rule.dear_s is None else rule.dear_s, warmup_s)
            dear = loops == 1 and first_ns * 1e-9 >= dear_s
            samples = [first_ns * 1e-6] if dear else []
            task.settled()
            if loops is not None:
                spent_ns = first_ns if dear else 0
                self._sample_until_enough(task, rule, loops, samples, self.clock() - spent_ns)
        return Timing(
            samples_ms=samples,
            first_call_s=first_ns * 1e-9,
            below_resolution=loops is None,
        )

    def _sample_until_enough(
        self, task: Task, rule: StoppingRule, loops: int, samples: list[float], began: int
    ) -> None:
        while not rule.enough(samples, (self.clock() - began) * 1e-9):
            samples.append(self._sample(task, loops) / loops * 1e-6)

    def _sample(self, task: Task, loops: int) -> int:
        """Return the nanoseconds of ``loops`` calls."""
        task.prepare()
        call, clock = task.call, self.clock
        began = clock()
        for _ in range(loops):
            call()
        return clock() - began

    def _loops(self, task: Task, elapsed_ns: int) -> int | None:
        """Return how many calls make a sample long enough, or ``None`` if no number of them does.

        ``elapsed_ns`` is what one call took.
        """
        tick = resolution_ns(self.clock)
        if tick is None:
            return None
        wanted_ns = max(WANTED_NS, WANTED_TICKS * tick)
        loops = 1
        while elapsed_ns < wanted_ns and task.repeatable and loops < MAX_LOOPS:
            loops *= 2
            elapsed_ns = self._sample(task, loops)
        return loops if elapsed_ns >= NEEDED_TICKS * tick else None
