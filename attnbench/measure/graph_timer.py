"""The timer for the shortest calls: many of them captured in one CUDA graph. In: a task. Out: samples, each
the time of a replay over its calls.

Launching is the GPU's then, so that the host's share is gone; what passes between two calls of a graph, about
a microsecond, is in the sample. Cold: each call of a graph reads its own copies of the inputs, and all copies
together exceed the L2 cache so far that none of a replay's are left for the next. Outputs are kept apart as
well.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .cuda_timer import FLUSH_BYTES, CudaTimer
from .stopping import StoppingRule
from .timing import Task, Timing, UnusableTimerError

WARM_CALLS = 100
MOST_CALLS = 4096
"""Inputs that would take more copies than this are too small to be rotated."""
L2_TIMES = 5
WARM_UP_CALLS = 3
"""PyTorch's documentation has a call run a few times, on another stream, before it is captured."""


class Graphs(Protocol):
    """A device that captures calls."""

    @property
    def l2_bytes(self) -> int:
        """The size of its last-level cache."""

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], None]:
        """Return what replays the calls, one after the other.

        Raises:
            UnusableTimerError: they can't be captured.
        """


class CudaGraphs:
    """The graphs of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        """Remember the device."""
        self._device = device

    @property
    def l2_bytes(self) -> int:
        """As the driver tells it."""
        return int(torch.cuda.get_device_properties(self._device).L2_cache_size)

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], None]:
        """Warm up, capture, and keep the outputs alive for as long as the graph."""
        graph, outputs = torch.cuda.CUDAGraph(), []
        try:
            self._warm_up(calls[0])
            with torch.cuda.device(self._device), torch.cuda.graph(graph):
                for call in calls:
                    outputs.append(call())
        except RuntimeError as error:  # no memory for all the outputs among them
            words = " ".join(str(error).split())
            raise UnusableTimerError(f"the call can't be captured: {words}") from None

        def replay(kept: list[Any] = outputs) -> None:
            graph.replay()

        return replay

    def _warm_up(self, call: Callable[[], Any]) -> None:
        current, side = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_CALLS):
                call()
        current.wait_stream(side)


@dataclass(frozen=True)
class GraphTimer(CudaTimer):
    """Replays between two events, one replay a sample."""

    name: str = "cuda-graph"
    graphs: Graphs = field(kw_only=True)

    def time(self, task: Task, rule: StoppingRule, warmup_s: float) -> Timing:
        """Capture, warm up, then sample replays.

        Raises:
            UnusableTimerError: there are no copies of the call, too many are needed, or it can't be captured.
        """
        calls = self._calls(task)
        replay = self.graphs.capture(calls)
        # Where cold, a flush stands before each replay too, so that the device is busy while the host
        # launches it; where warm, the replay before does that for all but the first of a chunk.
        timing = super().time(dataclasses.replace(task, call=replay), rule, warmup_s)
        samples = [sample / len(calls) for sample in timing.samples_ms]
        return dataclasses.replace(timing, samples_ms=samples)

    def _calls(self, task: Task) -> list[Callable[[], Any]]:
        if task.copies is None:
            raise UnusableTimerError("only the forward call of an attention is captured")
        if self.cache == "warm":
            return [task.call] * WARM_CALLS
        count = rotations(task.copies.bytes_each, self.graphs.l2_bytes)
        if count > MOST_CALLS:
            raise UnusableTimerError(f"{count} copies of the inputs would be needed for a cold cache")
        try:
            return [task.call, *task.copies.make(count - 1)]
        except torch.OutOfMemoryError:
            raise UnusableTimerError(f"no memory for {count} copies of the inputs") from None


def rotations(bytes_each: int, l2_bytes: int) -> int:
    """Return how many copies make each of them cold: together five times the cache, and 256 MB at least."""
    return max(2, -(-max(L2_TIMES * l2_bytes, FLUSH_BYTES) // max(1, bytes_each)))
