"""Which timer a call gets, how a CUDA graph rotates its inputs, and what is said about the others."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from attnbench.measure import latency
from attnbench.measure.cuda_timer import FLUSH_BYTES, CudaTimer
from attnbench.measure.graph_timer import MOST_CALLS, WARM_CALLS, CudaGraphs, GraphTimer, rotations
from attnbench.measure.ladder import Ladder
from attnbench.measure.latency import measure_latency, timer_for
from attnbench.measure.pipeline import measure_case
from attnbench.measure.stopping import StoppingRule
from attnbench.measure.timing import Copies, Task, UnusableTimerError, nothing
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import GpuTimer, MeasureSettings
from tests.measure.fake_device import BETWEEN_NODES_NS, FakeDevice, FakeGraphs, FakeStream, Refusing, ladder

RULE = StoppingRule(min_samples=30, budget_s=1)
MIB = 1 << 20


def task(device: FakeDevice, duration_ns: int, bytes_each: int | None = 1 * MIB, settled=nothing) -> Task:
    def call() -> None:
        device.launch(duration_ns)

    def make(count: int) -> list[Callable[[], None]]:
        return [call] * count

    copies = None if bytes_each is None else Copies(bytes_each=bytes_each, make=make)
    return Task(call=call, prepare=nothing, repeatable=True, settled=settled, copies=copies)


def test_a_short_call_is_replayed_from_a_graph():
    device = FakeDevice()
    timer = ladder(device)
    timing = timer.time(task(device, 4_000), RULE, 0.01)
    assert timer.name == "cuda-graph"
    assert timing.passed_over == {"cupti-activity": "cupti-python is not installed"}
    a_call_ms = (4_000 + BETWEEN_NODES_NS) * 1e-6
    assert timing.samples_ms == pytest.approx([a_call_ms] * len(timing.samples_ms), rel=0.01)


def test_a_long_call_is_timed_by_events():
    device = FakeDevice()
    timer = ladder(device)
    timing = timer.time(task(device, 300_000), RULE, 0.01)
    assert timer.name == "cuda-events"
    assert timing.samples_ms == pytest.approx([0.3] * len(timing.samples_ms), rel=0.01)
    assert set(timing.passed_over) == {"cupti-activity"}, "a graph is no better there"


def test_a_short_call_that_cant_be_captured_is_timed_by_events_and_that_is_said():
    device = FakeDevice()
    timer = ladder(device)
    timing = timer.time(task(device, 4_000, bytes_each=None), RULE, 0.01)
    assert timer.name == "cuda-events"
    assert timing.passed_over["cuda-graph"] == "only the forward call of an attention is captured"
    assert timing.samples_ms


def test_records_come_first():
    class Records(Refusing):
        def time(self, task, rule, warmup_s):
            return CudaTimer(FakeStream(device), "cold", device.clock).time(task, rule, warmup_s)

    device = FakeDevice()
    timer = ladder(device, activity=Records())
    timing = timer.time(task(device, 4_000), RULE, 0.01)
    assert (timer.name, dict(timing.passed_over)) == ("cupti-activity", {})


@pytest.mark.parametrize(("duration_ns", "first"), [(4_000, "cuda-events"), (300_000, "cuda-graph")])
def test_launches_of_one_case_are_read_from_one_clock(duration_ns, first):
    """Near 20 µs one process finds a call short and the next one does not."""
    device = FakeDevice()
    timer = ladder(device)
    timer.first = first
    timing = timer.time(task(device, duration_ns), RULE, 0.01)
    assert (timer.name, dict(timing.passed_over)) == (first, {})
    assert timing.samples_ms


def test_a_first_timer_that_can_t_be_used_any_more_gives_way_to_the_ladder():
    device = FakeDevice()
    timer = ladder(device)
    timer.first = "cupti-activity"
    timing = timer.time(task(device, 300_000), RULE, 0.01)
    assert (timer.name, dict(timing.passed_over)) == (
        "cuda-events",
        {"cupti-activity": "cupti-python is not installed"},
    )


def test_what_a_call_raises_is_no_reason_to_try_another_timer():
    device = FakeDevice()

    def call() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(torch.OutOfMemoryError):
        ladder(device).time(Task(call=call, prepare=nothing, repeatable=True), RULE, 0.0)


@pytest.mark.parametrize("duration_ns", [4_000, 300_000])
def test_samples_begin_when_the_device_has_warmed_up(duration_ns):
    device = FakeDevice()
    moments: list[int] = []
    settled = task(device, duration_ns, settled=lambda: moments.append(device.host_ns))
    ladder(device).time(settled, RULE, 0.2)
    assert moments[-1] >= 200_000_000
    assert device.host_ns > moments[-1]


def test_rotated_inputs_are_five_times_the_cache_and_no_less_than_a_flush():
    assert rotations(1 * MIB, 60 * MIB) == 300
    assert rotations(7 * MIB, 60 * MIB) * 7 * MIB >= 5 * 60 * MIB
    assert rotations(1 * MIB, 4 * MIB) == FLUSH_BYTES // MIB
    assert rotations(1 << 40, 60 * MIB) == 2
    assert rotations(0, 60 * MIB) > MOST_CALLS


def test_a_cold_graph_rotates_and_a_warm_one_repeats():
    for cache, captured in (("cold", 256), ("warm", WARM_CALLS)):
        device = FakeDevice()
        graphs = FakeGraphs(device, l2_bytes=4 * MIB)
        GraphTimer(FakeStream(device), cache, device.clock, graphs=graphs).time(
            task(device, 4_000), RULE, 0.0
        )
        assert graphs.captured == captured


def test_inputs_too_small_to_rotate_are_left_to_events():
    device = FakeDevice()
    timing = ladder(device).time(task(device, 4_000, bytes_each=256), RULE, 0.0)
    assert "copies of the inputs would be needed" in timing.passed_over["cuda-graph"]


def test_copies_that_find_no_memory_are_left_to_events():
    def make(count: int) -> list[Callable[[], None]]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    device = FakeDevice()
    short = Task(
        call=lambda: device.launch(4_000),
        prepare=nothing,
        repeatable=True,
        copies=Copies(bytes_each=MIB, make=make),
    )
    timing = ladder(device).time(short, RULE, 0.0)
    assert timing.passed_over["cuda-graph"] == "no memory for 256 copies of the inputs"
    assert timing.samples_ms


def test_copies_of_a_call_give_its_output_from_memory_of_their_own():
    workload = build_workload(Case(implementation="naive", seqlen_q=64))
    assert workload.copies is not None
    assert workload.copies.bytes_each == 3 * 8 * 64 * 64 * 4
    with workload.environment():
        first, second = workload.copies.make(2)
        out = workload.call().out
        workload.inputs["q"].zero_()
        assert torch.equal(first().out, out)
        assert torch.equal(second().out, out)


@pytest.mark.parametrize(
    "change", [{"mode": "bwd"}, {"mode": "fwd_bwd"}, {"mode": "decode"}, {"level": "block"}]
)
def test_only_forward_calls_of_an_attention_have_copies(change):
    fields = {"implementation": "naive", "seqlen_q": 64, **change}
    if change.get("mode") == "decode":
        fields |= {"seqlen_q": 1, "seqlen_k": 64}
    if change.get("level") == "block":
        fields |= {"preset": "tiny"}
    assert build_workload(Case.from_dict(fields)).copies is None


def test_a_record_says_which_timer_it_was_and_why_no_better_one():
    device = FakeDevice()
    workload = build_workload(Case(implementation="naive", seqlen_q=16, mode="bwd"))

    class Launching(Ladder):
        def time(self, task, rule, warmup_s):
            call = Task(call=lambda: device.launch(4_000), prepare=task.prepare, repeatable=task.repeatable)
            return super().time(call, rule, warmup_s)

    plain = ladder(device)
    missing: dict[str, str] = {}
    section, _ = measure_latency(
        workload,
        MeasureSettings(warmup_s=0.0),
        timer=Launching(plain.activity, plain.graph, plain.events),
        unavailable=missing,
    )
    assert section.timer == "cuda-events"
    assert missing == {
        "latency.cupti-activity": "cupti-python is not installed",
        "latency.cuda-graph": "only the forward call of an attention is captured",
    }


@pytest.mark.gpu
def test_a_graph_replays_what_the_call_computes():
    x = torch.randn(1 << 20, device="cuda")
    out: list[torch.Tensor] = []

    def call() -> None:
        out[:] = [x * 2]

    torch.cuda.synchronize()
    replay = CudaGraphs(torch.device("cuda")).capture([call] * 3)
    x.fill_(3)
    replay()
    torch.cuda.synchronize()
    assert bool((out[0] == 6).all())


@pytest.mark.gpu
def test_a_call_that_synchronises_cant_be_captured_and_harms_nothing():
    x = torch.randn(16, device="cuda")
    with pytest.raises(UnusableTimerError, match="can't be captured"):
        CudaGraphs(torch.device("cuda")).capture([lambda: x.sum().item()])
    assert bool(torch.isfinite(x).all())


@pytest.mark.parametrize("name", get_args(GpuTimer))
def test_the_one_timer_that_a_suite_names_is_not_on_the_ladder(name, monkeypatch):
    monkeypatch.setattr(latency, "CudaStream", lambda device: FakeStream(FakeDevice()))
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda"), case=Case(implementation="naive", seqlen_q=16))
    assert timer_for(on_gpu, only=name).name == name
    assert isinstance(timer_for(on_gpu), Ladder)


def test_where_the_one_timer_does_not_work_there_is_no_latency_but_a_reason(monkeypatch):
    asked: list[str | None] = []

    def only_that(workload, first=None, only=None):
        asked.append(only)
        return Refusing()

    monkeypatch.setattr(latency, "timer_for", only_that)
    settings = MeasureSettings(metrics=("latency", "memory"), timer="cupti-activity", launches=1)
    record = measure_case(Case(implementation="naive", seqlen_q=16), settings)
    assert (record.status, record.latency, asked) == ("ok", None, ["cupti-activity"])
    assert record.memory.peak_bytes
    assert record.unavailable["latency"] == (
        "cupti-activity, the only timer that was asked for: cupti-python is not installed"
    )
