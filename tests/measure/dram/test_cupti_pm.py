"""PM sampling, with a library made by hand after cupti-python's documentation: windows, names, refusals."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from attnbench.measure.dram import cupti_pm
from attnbench.measure.dram.backend import BackendError
from tests.measure.dram.fakes import small_job

READ, WRITTEN, BACKGROUND = 4096.0, 1024.0, 100.0


class Collector:
    """Counts what the call moves in the samples of a window, over a background that is always there."""

    spelling: tuple[str, ...] = cupti_pm.SPELLINGS[0]
    refusal: Exception | None = None
    overflow = False
    made: "list[Collector]"

    def __init__(self, device_index: int) -> None:
        self.device_index, self.enabled, self.calls = device_index, False, 0
        self.configured: dict[str, object] = {}
        type(self).made.append(self)

    def enable(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.enabled = True

    def configure(self, **asked) -> None:
        if tuple(asked["metrics"]) != self.spelling:
            raise ValueError("unknown metric, or more than one pass")
        self.configured = asked

    def start(self) -> None:
        self.before = MOVED.calls

    def stop(self) -> None:
        self.calls = MOVED.calls - self.before

    def decode(self, max_samples: int) -> list[SimpleNamespace]:
        if self.overflow:
            raise MemoryError
        counts = [READ * self.calls + BACKGROUND, WRITTEN * self.calls + BACKGROUND]
        if len(self.spelling) == 1:
            counts = [sum(counts)]
        return [SimpleNamespace(metric_values=[count / 2 for count in counts]) for _ in range(2)]

    def disable(self) -> None:
        self.enabled = False


MOVED = SimpleNamespace(calls=0)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> type[Collector]:
    kind: type[Collector] = type("FakeCollector", (Collector,), {"made": []})
    library = ModuleType("cupti.pm_sampling")
    modes = SimpleNamespace(GPU_TIME_INTERVAL="time", GPU_SYSCLK_INTERVAL="cycles")
    vars(library).update(Collector=kind, TriggerMode=modes)
    package = ModuleType("cupti")
    vars(package).update(pm_sampling=library)
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.pm_sampling", library)
    return kind


def job():
    def call() -> None:
        MOVED.calls += 1

    return small_job(call=call)


def test_a_call_is_counted_less_the_background(collector):
    found = cupti_pm.sample(job()).net()
    assert (found.read, found.write, found.total) == (4096, 1024, 5120)
    assert collector.made[0].configured["trigger_mode"] == "time"
    assert not collector.made[0].enabled


def test_the_other_spelling_and_the_total_alone(collector):
    collector.spelling = cupti_pm.SPELLINGS[1]
    assert cupti_pm.sample(job()).net().read == 4096
    collector.spelling = cupti_pm.SPELLINGS[2]
    found = cupti_pm.sample(job()).net()
    assert (found.read, found.write, found.total) == (None, None, 5120)


def test_chips_that_sample_by_cycles(collector, monkeypatch):
    monkeypatch.setattr(cupti_pm, "_is_by_cycles", lambda job: True)
    cupti_pm.sample(job())
    assert collector.made[0].configured["trigger_mode"] == "cycles"


def test_no_spelling_is_a_reason_and_the_collector_is_let_go(collector):
    collector.spelling = ("lts__t_bytes.sum",)
    with pytest.raises(BackendError, match="no DRAM counter can be sampled here"):
        cupti_pm.sample(job())
    assert not collector.made[0].enabled


def test_permission_and_overflow(collector):
    collector.overflow = True
    with pytest.raises(BackendError, match="buffer for samples"):
        cupti_pm.sample(job())
    collector.refusal = PermissionError("CUPTI: insufficient privileges")
    with pytest.raises(cupti_pm.Forbidden):
        cupti_pm.sample(job())


def test_zeros_are_no_count(collector):
    with pytest.raises(BackendError, match="every sample of the counters is 0"):
        cupti_pm.sample(small_job()).net()


LIBRARY = """
from types import SimpleNamespace
TriggerMode = SimpleNamespace(GPU_TIME_INTERVAL=1, GPU_SYSCLK_INTERVAL=0)
class Collector:
    windows = 0
    def __init__(self, device_index): pass
    def enable(self): {enable}
    def configure(self, **asked): pass
    def start(self): pass
    def stop(self): Collector.windows += 1
    def decode(self, max_samples):
        full = Collector.windows > {windows}
        return [SimpleNamespace(metric_values=[700.0 * full, 300.0 * full])]
    def disable(self): pass
"""


@pytest.mark.long
@pytest.mark.parametrize("enable", ["pass", "import os; os.kill(os.getpid(), 11)"])
def test_a_process_of_its_own_counts_or_crashes(tmp_path, monkeypatch, enable):
    (tmp_path / "cupti").mkdir()
    (tmp_path / "cupti" / "__init__.py").touch()
    text = LIBRARY.format(enable=enable, windows=cupti_pm.WINDOWS)
    (tmp_path / "cupti" / "pm_sampling.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    if enable == "pass":
        found = cupti_pm.measure(small_job(), 120)
        assert (found.read, found.write, found.total) == (700, 300, 1000)
    else:
        with pytest.raises(BackendError, match="cupti-pm wrote no table"):
            cupti_pm.measure(small_job(), 120)
