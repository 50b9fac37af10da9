"""The timer for CUDA devices. In: a task. Out: samples between two events."""

from dataclasses import dataclass

import torch

from .stream_timer import StreamTimer

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
class CudaTimer(StreamTimer):
    """Samples between two events."""

    name: str = "cuda-events"
    resolution_ms: float = EVENT_RESOLUTION_MS
