"""Activity records: matched to calls, flushes and strangers left out, and all ways in which they fail."""

import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from attnbench.device import cupti
from attnbench.measure.cupti_timer import CuptiTimer
from attnbench.measure.stopping import StoppingRule, quantile
from attnbench.measure.timing import Task, UnusableTimerError, nothing
from tests.measure.fake_device import ActivityKind, FakeCupti, FakeDevice, FakeStream, Kernel, cuptiError

RULE = StoppingRule(min_samples=30, budget_s=1)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def library(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    fake = FakeCupti(device)
    monkeypatch.setitem(sys.modules, "cupti.cupti", fake)
    monkeypatch.setattr(cupti, "version", lambda package: "13.4.0")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return fake


def timer(device: FakeDevice, cache: str = "cold") -> CuptiTimer:
    return CuptiTimer(FakeStream(device), cache, device.clock)


def task(device: FakeDevice, *durations_ns: int) -> Task:
    def call() -> None:
        for number, duration_ns in enumerate(durations_ns):
            device.launch(duration_ns, f"kernel {number}")

    return Task(call=call, prepare=nothing, repeatable=True)


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_launching_is_in_no_sample_and_neither_is_the_flush(device, library, cache):
    timing = timer(device, cache).time(task(device, 4_000), RULE, warmup_s=0.01)
    assert timing.samples_ms == pytest.approx([0.004] * len(timing.samples_ms))
    assert len(timing.samples_ms) >= 30
    assert any(kernel.name == "flush" for kernel in device.kernels) is (cache == "cold")


def test_a_call_of_several_kernels_lasts_from_the_first_to_the_last(device, library):
    """Behind a flush they are queued already, so that they follow each other at once."""
    timing = timer(device).time(task(device, 3_000, 10_000, 2_000), RULE, warmup_s=0.01)
    assert timing.samples_ms == pytest.approx([0.015] * len(timing.samples_ms))


def test_what_prepares_a_call_is_in_no_sample(device, library):
    prepared = replace(task(device, 4_000), prepare=lambda: device.launch(70_000, "forward"))
    timing = timer(device).time(prepared, RULE, warmup_s=0.01)
    assert timing.samples_ms == pytest.approx([0.004] * len(timing.samples_ms))


def test_nothing_is_recorded_any_more_afterwards(device, library):
    timer(device).time(task(device, 4_000), RULE, warmup_s=0.0)
    assert not library.enabled
    assert library.finalized == 1


def test_nor_after_a_call_that_fails(device, library):
    def call() -> None:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        timer(device).time(Task(call=call, prepare=nothing, repeatable=True), RULE, warmup_s=0.0)
    assert not library.enabled


def test_another_set_of_kernels_is_no_sample_of_the_same_call(device, library):
    calls = iter(range(10_000))

    def call() -> None:
        device.launch(4_000, "one path" if next(calls) < 20 else "the other path")

    changing = Task(call=call, prepare=nothing, repeatable=True)
    with pytest.raises(
        UnusableTimerError, match=r"kernels changed between samples.*one path, the other path"
    ):
        timer(device).time(changing, RULE, warmup_s=0.0)
    assert not library.enabled


def test_one_more_of_the_same_kernel_is_another_set_too(device, library):
    calls = iter(range(10_000))

    def call() -> None:
        for _ in range(1 if next(calls) < 20 else 2):
            device.launch(4_000, "split")

    with pytest.raises(UnusableTimerError, match="from 1 to 2: split"):
        timer(device).time(Task(call=call, prepare=nothing, repeatable=True), RULE, warmup_s=0.0)


def test_a_lost_record_is_no_time(device, library):
    def every_hundredth(kernel: Kernel) -> bool:
        return kernel.name != "flush" and kernel.correlation_id % 100 == 0

    library.drops = every_hundredth
    with pytest.raises(UnusableTimerError, match="no kernel of a call was recorded"):
        timer(device).time(task(device, 4_000), replace(RULE, min_samples=200), warmup_s=0.0)


def test_what_cupti_says_is_the_reason(device, library):
    library.refuses["MEMCPY"] = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"
    with pytest.raises(UnusableTimerError, match=r"can't enable MEMCPY: .*MULTIPLE_SUBSCRIBERS"):
        timer(device).time(task(device, 4_000), RULE, warmup_s=0.0)
    assert not library.enabled, "what it had not refused is not left on"


def test_a_kind_that_cant_be_switched_off_leaves_no_other_on(device, library, monkeypatch):
    def disable(kind: ActivityKind) -> None:
        library.enabled.discard(kind)
        if kind is ActivityKind.RUNTIME:
            raise cuptiError("CUPTI_ERROR_UNKNOWN (999)")

    monkeypatch.setattr(library, "activity_disable", disable)
    with pytest.raises(UnusableTimerError, match="can't disable RUNTIME: CUPTI_ERROR_UNKNOWN"):
        timer(device).time(task(device, 4_000), RULE, warmup_s=0.0)
    assert not library.enabled
    assert library.finalized == 1


@pytest.mark.parametrize(
    ("installed", "cuda", "reason"),
    [
        ("12.9.0", "12.9", "cupti-python 12.9.0 is too old, 13 is needed"),
        ("13.4.0", "12.8", "cupti-python 13.4.0 and a PyTorch for CUDA 12.8 bring different CUPTIs"),
        ("13.4.0", "13.0", None),
        ("13.4.0", None, None),
    ],
)
def test_versions_that_go_together(library, monkeypatch, installed, cuda, reason):
    monkeypatch.setattr(cupti, "version", lambda package: installed)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert cupti.refusal() == reason


def test_a_package_that_is_not_installed(monkeypatch):
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(cupti, "version", missing)
    assert cupti.refusal() == "cupti-python is not installed"
    with pytest.raises(UnusableTimerError, match="not installed"):
        CuptiTimer(FakeStream(FakeDevice())).time(task(FakeDevice(), 1), RULE, 0.0)


@pytest.mark.gpu
def test_activity_records_agree_with_events():
    """One kernel of some hundred microseconds: launching hides behind the flush, so both read the same."""
    from attnbench.measure.cuda_timer import CudaStream, CudaTimer

    if (reason := cupti.refusal()) is not None:
        pytest.skip(reason)
    x = torch.randn(64 << 20, device="cuda")
    work = Task(call=lambda: x.add_(1), prepare=nothing, repeatable=True)
    stream = CudaStream(torch.device("cuda"))
    records, events = (
        quantile(one.time(work, RULE, 0.2).samples_ms, 0.5) for one in (CuptiTimer(stream), CudaTimer(stream))
    )
    assert records == pytest.approx(events, rel=0.05)
