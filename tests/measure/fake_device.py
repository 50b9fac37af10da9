"""A GPU without a GPU: a host and a device with a clock each, and what CUPTI and CUDA graphs would make of
it.

The host queues work, which takes it a few microseconds a launch; the device does it in order, behind the host
whenever it is busy. Nothing else moves the clocks.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from attnbench.measure.cuda_timer import CudaTimer
from attnbench.measure.graph_timer import GraphTimer
from attnbench.measure.ladder import Ladder
from attnbench.measure.timing import Timer, UnusableTimerError

LAUNCH_NS = 5_000
FLUSH_NS = 58_000
BETWEEN_NODES_NS = 1_000


@dataclass
class Kernel:
    name: str
    start_ns: int
    end_ns: int
    launched_ns: int
    correlation_id: int


@dataclass
class FakeDevice:
    """Both clocks, and everything that was launched."""

    host_ns: int = 0
    device_ns: int = 0
    kernels: list[Kernel] = field(default_factory=list)
    capturing: list[tuple[str, int]] | None = None

    def clock(self) -> int:
        return self.host_ns

    def launch(self, duration_ns: int, name: str = "kernel") -> None:
        if self.capturing is not None:
            self.capturing.append((name, duration_ns))
            return
        launched = self.host_ns
        self.host_ns += LAUNCH_NS
        start = max(self.device_ns, self.host_ns)
        self.device_ns = start + duration_ns
        self.kernels.append(Kernel(name, start, self.device_ns, launched, len(self.kernels) + 1))

    def wait(self) -> None:
        self.host_ns = max(self.host_ns, self.device_ns)


@dataclass
class FakeStream:
    """Its events are as CUDA's: an event's time is when the device reaches it."""

    device: FakeDevice

    def flush(self) -> None:
        self.device.launch(FLUSH_NS, "flush")

    def mark(self) -> int:
        self.device.host_ns += 1_000
        return max(self.device.device_ns, self.device.host_ns)

    def elapsed_ms(self, start: int, end: int) -> float:
        return (end - start) * 1e-6

    def synchronize(self) -> None:
        self.device.wait()


@dataclass
class FakeGraphs:
    """Captures what is launched; a replay is one launch, and the device starts each node by itself."""

    device: FakeDevice
    l2_bytes: int = 50 << 20
    captured: int = 0

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], None]:
        self.captured = len(calls)
        nodes: list[tuple[str, int]] = []
        self.device.capturing = nodes
        for call in calls:
            call()
        self.device.capturing = None
        # A node starts some time after the one before it has ended; that time follows the last one as well.
        whole_ns = sum(duration + BETWEEN_NODES_NS for _, duration in nodes)
        return lambda: self.device.launch(whole_ns, "graph")


class Refusing:
    """A timer that can't be used here."""

    name, cache = "cupti-activity", "cold"

    def time(self, task, rule, warmup_s):
        raise UnusableTimerError("cupti-python is not installed")


def ladder(device: FakeDevice, cache: str = "cold", activity: Timer | None = None) -> Ladder:
    stream = FakeStream(device)
    graph = GraphTimer(stream, cache, device.clock, graphs=FakeGraphs(device))
    return Ladder(activity or Refusing(), graph, CudaTimer(stream, cache, device.clock))


class ActivityKind(enum.IntEnum):
    """With the numbers of cupti_activity.h."""

    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10


class cuptiError(Exception):
    pass


class Record:
    """An activity record, readable while CUPTI lends the buffer that it lies in."""

    def __init__(self, **fields: Any) -> None:
        self._fields: dict[str, Any] | None = fields

    def __getattr__(self, name: str) -> Any:
        if self._fields is None:
            raise AssertionError("read after its buffer was given back")
        return self._fields[name]

    def give_back(self) -> None:
        self._fields = None


class FakeCupti(ModuleType):
    """`cupti.cupti` of cupti-python 13, as far as activity records go."""

    ActivityKind, cuptiError = ActivityKind, cuptiError

    def __init__(self, device: FakeDevice) -> None:
        super().__init__("cupti.cupti")
        self.device = device
        self.enabled: set[int] = set()
        self.completed: Callable[[list[Record]], None] | None = None
        self.reported = 0
        self.finalized = 0
        self.refuses: dict[str, str] = {}
        self.drops: Callable[[Kernel], bool] = lambda kernel: False

    def activity_enable(self, kind: int) -> None:
        if (why := self.refuses.get(ActivityKind(kind).name)) is not None:
            raise cuptiError(why)
        if not self.enabled:
            self.reported = len(self.device.kernels)
        self.enabled.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.discard(kind)

    def activity_register_callbacks(
        self, requested: Callable[[], tuple[int, int]], completed: Callable[[list[Record]], None]
    ) -> None:
        size, most_records = requested()
        assert size >= 1 << 20, "CUPTI wants buffers of a megabyte and more"
        assert most_records == 0
        self.completed = completed

    def activity_flush_all(self, flag: int) -> None:
        assert self.device.host_ns >= self.device.device_ns, "unfinished records are not delivered"
        records = []
        for kernel in self.device.kernels[self.reported :]:
            number = kernel.correlation_id
            if ActivityKind.RUNTIME in self.enabled:
                start = kernel.launched_ns
                records.append(
                    Record(
                        kind=ActivityKind.RUNTIME, start=start, end=start + LAUNCH_NS, correlation_id=number
                    )
                )
            kind = ActivityKind.MEMSET if kernel.name == "flush" else ActivityKind.CONCURRENT_KERNEL
            if kind in self.enabled and not self.drops(kernel):
                named = {"bytes": 256 << 20} if kind is ActivityKind.MEMSET else {"name": kernel.name}
                times = {"start": kernel.start_ns, "end": kernel.end_ns}
                records.append(Record(kind=kind, correlation_id=number, **times, **named))
        self.reported = len(self.device.kernels)
        if records:
            self.completed(records)
        for record in records:
            record.give_back()

    def get_timestamp(self) -> int:
        self.device.host_ns += 100
        return self.device.host_ns

    def finalize(self) -> None:
        assert not self.enabled, "still recording"
        self.finalized += 1
