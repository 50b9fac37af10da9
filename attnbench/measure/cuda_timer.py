"""The timer for CUDA devices. In: a task. Out: samples between two events, with the L2 cache cold or warm.

The flush stands before the first event, so its time is not in the sample; it also keeps the device busy
while the host launches the call. Samples are queued in chunks and read after one synchronisation.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from .stopping import StoppingRule, quantile
from .timing import HOST_CLOCK, Clock, Stream, Task, Timing, collector_off

CHUNK = 50
CHUNKS_A_BUDGET = 4
FLUSH_BYTES = 256 << 20
EVENT_RESOLUTION_MS = 0.0005
"""CUDA's documentation: cudaEventElapsedTime resolves about half a microsecond."""


class CudaStream:
    """The current stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        """Allocate the buffer whose zeroing replaces the whole L2 cache."""
        self._device = device
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._buffer = torch.empty(max(2 * l2_bytes, FLUSH_BYTES) // 4, dtype=torch.int32, device=device)

    def flush(self) -> None:
        """Zero the buffer."""
        self._buffer.zero_()

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def elapsed_ms(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the milliseconds between two events."""
        return float(start.elapsed_time(end))

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)


@dataclass(frozen=True)
class CudaTimer:
    """Marks the stream around each call, one call a sample."""

    stream: Stream
    cache: str = "cold"
    host_clock: Clock = field(default=HOST_CLOCK)
    name: str = "cuda-events"
    resolution_ms: float = EVENT_RESOLUTION_MS

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
