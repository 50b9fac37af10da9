"""The timer that reads the GPU's own activity records. In: a task. Out: samples, from the beginning of a
call's first kernel to the end of its last.

Time between the kernels of a call is in the sample, time before the first is not; nor is the flush, whose
kernel belongs to no call. Only CUDA calls of this process are seen.
"""

from dataclasses import dataclass

from attnbench.device.cupti import Activities, CuptiError, refusal

from .stopping import StoppingRule
from .stream_timer import StreamTimer
from .timing import Stream, Task, Timing, UnusableTimerError

TICK_MS = 32e-6
"""The GPU's nanosecond timer moves in steps of 32 ns since Pascal, of a microsecond before."""


@dataclass
class ActivityStream:
    """A stream whose marks are moments on the host, and whose times are of what was launched between them.

    Every sample must be of the same kernels.
    """

    stream: Stream
    activities: Activities
    kernels: tuple[str, ...] | None = None

    def flush(self) -> None:
        """Queue the flush, outside of any two marks."""
        self.stream.flush()

    def mark(self) -> int:
        """Return the moment."""
        return self.activities.now_ns()

    def synchronize(self) -> None:
        """Wait for the device and take its records."""
        self.stream.synchronize()
        self.activities.collect()

    def elapsed_ms(self, start: int, end: int) -> float:
        """Return the time from the first kernel's beginning to the last one's end.

        Raises:
            UnusableTimerError: no kernel was recorded, or not those of the samples before.
        """
        work = self.activities.between(start, end)
        if not work:
            raise UnusableTimerError("no kernel of a call was recorded")
        kernels = tuple(sorted(one.name for one in work))
        if self.kernels is not None and kernels != self.kernels:
            changed = sorted(set(kernels) ^ set(self.kernels)) or sorted(set(kernels))
            raise UnusableTimerError(
                f"the call's kernels changed between samples, from {len(self.kernels)} to {len(kernels)}: "
                f"{', '.join(changed)}"
            )
        self.kernels = kernels
        return (max(one.end_ns for one in work) - work[0].start_ns) * 1e-6


@dataclass(frozen=True)
class CuptiTimer(StreamTimer):
    """Marks the stream as any timer does; only what is read is another clock."""

    name: str = "cupti-activity"
    resolution_ms: float = TICK_MS

    def time(self, task: Task, rule: StoppingRule, warmup_s: float) -> Timing:
        """Warm up, sample, and stop recording.

        Raises:
            UnusableTimerError: CUPTI can't be used here, or its records don't tell the time of this call.
        """
        reason = refusal()
        if reason is not None:
            raise UnusableTimerError(reason)
        try:
            with Activities() as activities:
                stream = ActivityStream(self.stream, activities)
                sampler = StreamTimer(
                    stream, self.cache, self.host_clock, name=self.name, resolution_ms=self.resolution_ms
                )
                return sampler.time(task, rule, warmup_s)
        except CuptiError as error:
            raise UnusableTimerError(str(error)) from None
