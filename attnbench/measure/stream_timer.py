"""How every timer of a GPU samples. In: a task, and a stream of work. Out: the times between two marks of the
stream, one before and one after each call, with the L2 cache cold or warm.

The flush stands before the first mark, so its time is not in the sample; it also keeps the device busy while
the host launches the call. Samples are queued in chunks and read after one synchronisation.
"""

from dataclasses import dataclass, field
from typing import Any

from .stopping import StoppingRule, quantile
from .timing import HOST_CLOCK, Clock, Stream, Task, Timing, collector_off

CHUNK = 50
CHUNKS_A_BUDGET = 4


@dataclass(frozen=True)
class StreamTimer:
    """Marks the stream around each call, one call a sample. ``resolution_ms`` is that of its marks."""

    stream: Stream
    cache: str = "cold"
    host_clock: Clock = field(default=HOST_CLOCK)
    name: str = field(kw_only=True)
    resolution_ms: float = field(kw_only=True)

    def time(self, task: Task, rule: StoppingRule, warmup_s: float) -> Timing:
        """Warm up as the samples will run, then sample in chunks."""
        with collector_off():
            began = self.host_clock()
            self._queue(task, 1)
            self.stream.synchronize()
            first_call_s = self._since(began)
            chunk = self._warm_up(task, rule, warmup_s)
            task.settled()
            samples: list[float] = []
            began = self.host_clock()
            while not rule.enough(samples, self._since(began)):
                marks = self._queue(task, chunk)
                self.stream.synchronize()
                samples += [self.stream.elapsed_ms(start, end) for start, end in marks]
        too_short = quantile(samples, 0.5) < 2 * self.resolution_ms
        return Timing(
            samples_ms=[] if too_short else samples,
            first_call_s=first_call_s,
            below_resolution=too_short,
        )

    def _warm_up(self, task: Task, rule: StoppingRule, warmup_s: float) -> int:
        """Run for ``warmup_s``; return how many samples to queue at once, fewer where they are slow."""
        began, calls = self.host_clock(), 0
        while calls == 0 or self._since(began) < warmup_s:
            self._queue(task, 1)
            self.stream.synchronize()
            calls += 1
        call_s = self._since(began) / calls
        affordable = int(rule.budget_s / CHUNKS_A_BUDGET / call_s) if call_s > 0 else CHUNK
        return max(1, min(CHUNK, affordable))

    def _queue(self, task: Task, count: int) -> list[tuple[Any, Any]]:
        marks = []
        for _ in range(count):
            task.prepare()
            if self.cache == "cold":
                self.stream.flush()
            start = self.stream.mark()
            task.call()
            marks.append((start, self.stream.mark()))
        return marks

    def _since(self, began: int) -> float:
        return (self.host_clock() - began) * 1e-9
