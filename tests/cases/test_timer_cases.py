"""Cases B05 and B09: a flush that is timed or leaves the cache warm; calls too short for a timer."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import pytest
import torch

from attnbench.device import cupti
from attnbench.measure.cpu_timer import CpuTimer
from attnbench.measure.cuda_timer import CudaStream, CudaTimer
from attnbench.measure.cupti_timer import CuptiTimer
from attnbench.measure.graph_timer import CudaGraphs, GraphTimer
from attnbench.measure.latency import measure_latency
from attnbench.measure.record import Latency
from attnbench.measure.stopping import StoppingRule, quantile
from attnbench.measure.timing import Copies, Task, Timer, Timing, nothing
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from tests.measure.fake_device import (
    BETWEEN_NODES_NS,
    FLUSH_NS,
    FakeCupti,
    FakeDevice,
    FakeGraphs,
    FakeStream,
)

RULE = StoppingRule(min_samples=30, budget_s=1)
KERNEL_NS = 4_000
MIB = 1 << 20


def timers(device: FakeDevice, cache: str) -> list[Timer]:
    stream = FakeStream(device)
    return [
        CudaTimer(stream, cache, device.clock),
        CuptiTimer(stream, cache, device.clock),
        GraphTimer(stream, cache, device.clock, graphs=FakeGraphs(device)),
    ]


@pytest.mark.parametrize("index", range(3), ids=["events", "records", "graph"])
def test_b05_a_kernel_of_4_us_behind_a_flush_of_58_us_takes_4_us(monkeypatch, index):
    """0.004 ms, not 0.062."""
    device = FakeDevice()
    monkeypatch.setitem(sys.modules, "cupti.cupti", FakeCupti(device))
    monkeypatch.setattr(cupti, "refusal", lambda: None)
    monkeypatch.setattr("attnbench.measure.cupti_timer.refusal", lambda: None)

    def call() -> None:
        device.launch(KERNEL_NS)

    copies = Copies(bytes_each=64 * MIB, make=lambda count: [call] * count)
    task = Task(call=call, prepare=nothing, repeatable=True, copies=copies)
    timer = timers(device, "cold")[index]
    samples = timer.time(task, RULE, 0.01).samples_ms
    between_ns = BETWEEN_NODES_NS if timer.name == "cuda-graph" else 0
    assert samples == pytest.approx([(KERNEL_NS + between_ns) * 1e-6] * len(samples), rel=0.01)
    flushed = sum(kernel.name == "flush" for kernel in device.kernels)
    assert flushed >= len(samples) or timer.name == "cuda-graph", "each cold sample has a flush before it"
    assert FLUSH_NS > 10 * KERNEL_NS


@pytest.mark.gpu
def test_b05_a_flushed_cache_is_as_cold_as_rotated_inputs_and_no_faster_than_the_memory():
    """64 MiB read and as much written: a warm cache would show a bandwidth that no memory has."""
    from attnbench.device import nvml
    from attnbench.measure.telemetry import uuid_of

    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.randn(16 * MIB, device=device)

    def make(count: int) -> list[Callable[[], torch.Tensor]]:
        return [partial(torch.add, x.clone(), 1) for _ in range(count)]

    copies = Copies(bytes_each=x.nbytes, make=make)
    task = Task(call=lambda: x + 1, prepare=nothing, repeatable=True, copies=copies)
    stream = CudaStream(device)
    flushed, rotated = (
        quantile(timer.time(task, RULE, 0.2).samples_ms, 0.5)
        for timer in (CudaTimer(stream), GraphTimer(stream, graphs=CudaGraphs(device)))
    )
    assert flushed == pytest.approx(rotated, rel=0.1)
    facts = nvml.gpu_facts(uuid_of(device))
    peak_bytes_per_s = 2 * facts["max_memory_clock_mhz"] * 1e6 * facts["memory_bus_bits"] / 8
    assert 2 * x.nbytes / (flushed * 1e-3) <= peak_bytes_per_s


@dataclass
class Injected:
    """A timer that returns what it is told."""

    samples_ms: list[float]
    name: str = "injected"
    cache: str = "warm"

    def time(self, task: Task, rule: StoppingRule, warmup_s: float) -> Timing:
        return Timing(samples_ms=self.samples_ms, first_call_s=0.0, below_resolution=False)


class StandingClock:
    """Events whose difference is 0.0, and once 1e-7 ms."""

    def __init__(self) -> None:
        self.device = FakeDevice()
        self.differences = iter([0.0, 1e-7, *[0.0] * 10_000])

    def flush(self) -> None:
        self.device.host_ns += 1000

    def mark(self) -> None:
        self.device.host_ns += 1000

    def elapsed_ms(self, start: None, end: None) -> float:
        return next(self.differences)

    def synchronize(self) -> None:
        pass


def events_of_a_standing_clock() -> Timer:
    stream = StandingClock()
    return CudaTimer(stream, "cold", stream.device.clock)


@pytest.mark.parametrize(
    "timer",
    [
        Injected([0.0, 1e-7]),
        Injected([0.0, 1e-7] * 20),
        Injected([0.0, 1e-7, 1e-7]),
        Injected([]),
        events_of_a_standing_clock(),
        CpuTimer(clock=lambda: 7),
    ],
    ids=["twice", "often", "mostly above", "never", "events", "clock"],
)
def test_b09_what_no_timer_can_tell_is_below_resolution_and_no_number(timer):
    workload = build_workload(Case(implementation="naive", seqlen_q=16))
    empty = replace(workload, call=lambda: None)
    settings = MeasureSettings(warmup_s=0.0, latency_budget_s=0.01)
    section, _ = measure_latency(empty, settings, timer=timer, unavailable={})
    assert section.verdict == ["below_resolution"]
    kept = {name for name, value in msgspec.structs.asdict(section).items() if value is not None}
    assert kept == {"launches", "timer", "cache", "verdict"}, "no median of 0, no throughput without end"
    assert msgspec.convert(msgspec.to_builtins(section), Latency) == section
