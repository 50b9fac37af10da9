"""Two runs don't time each other: a device has one holder, and nobody waits for ever."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.measure.record import Latency, Record
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.run.device_lock import Holder, device_lock, lock_file
from attnbench.run.executor import ExecutorSettings
from attnbench.run.turns import TakingTurns

SINCE = "2026-11-30T09:30:00Z"
HOLD = """
import sys, time
from attnbench.run.device_lock import device_lock
limit_s, stay_s = map(float, sys.argv[1:])
with device_lock("cpu", since_utc="2026-11-30T09:30:00Z", limit_s=limit_s, waiting=print) as alone:
    print(alone, flush=True)
    time.sleep(stay_s)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of our own, for us and our children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def hold() -> Iterator[Callable[[float, float], subprocess.Popen[str]]]:
    """Starts processes that hold the lock of the CPU; they are ended behind the test."""
    started: list[subprocess.Popen[str]] = []

    def start(limit_s: float, stay_s: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(limit_s), str(stay_s)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "True\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def take(waited: list[Holder], device: str = "cpu", limit_s: float = 60.0):
    return device_lock(device, since_utc=SINCE, limit_s=limit_s, waiting=waited.append)


def test_the_second_waits_and_learns_for_whom(hold):
    first = hold(60.0, 0.5)
    waited: list[Holder] = []
    with take(waited) as alone:
        assert alone
        assert first.wait(5) == 0
    assert [(holder.pid, holder.since_utc) for holder in waited] == [(first.pid, SINCE)]


def test_other_devices_are_not_waited_for(hold):
    hold(60.0, 60.0)
    waited: list[Holder] = []
    with take(waited, "GPU-7c9b") as alone:
        assert alone
    assert waited == []


def test_the_kernel_gives_back_what_a_killed_process_held(hold):
    first = hold(60.0, 60.0)
    first.kill()
    first.wait()
    assert str(first.pid) in lock_file("cpu").read_text(encoding="utf-8")
    with take([]) as alone:
        assert alone


def test_a_stopped_holder_is_waited_for_until_its_own_limit(hold, monkeypatch):
    monkeypatch.setattr("attnbench.run.device_lock._GRACE_S", 0.1)
    first = hold(0.2, 60.0)
    os.kill(first.pid, signal.SIGSTOP)
    waited: list[Holder] = []
    with take(waited) as alone:
        assert not alone
        assert len(waited) == 1
        with take([]) as nested:  # a run in a run: nobody waits for itself
            assert not nested
    assert str(first.pid) in lock_file("cpu").read_text(encoding="utf-8"), "it still holds it"


def test_a_holder_that_says_nothing_is_waited_for_as_long_as_one_of_ours(hold, monkeypatch):
    monkeypatch.setattr("attnbench.run.device_lock._GRACE_S", 0.1)
    hold(60.0, 60.0)
    lock_file("cpu").write_text("{", encoding="utf-8")
    began = time.monotonic()
    with take([], limit_s=0.3) as alone:
        assert not alone
    assert time.monotonic() - began >= 0.4


def test_the_file_is_everybody_s_whatever_the_umask():
    before = os.umask(0o077)
    try:
        with take([]) as alone:
            assert alone
    finally:
        os.umask(before)
    assert lock_file("cpu").stat().st_mode & 0o777 == 0o666


def test_a_link_is_not_followed(folder):
    (folder / "mine").write_text("precious", encoding="utf-8")
    lock_file("cpu").symlink_to(folder / "mine")
    with pytest.raises(OSError, match="symbolic links"), take([]):
        pass
    assert (folder / "mine").read_text(encoding="utf-8") == "precious"


def is_free() -> bool:
    """Whether the lock of the CPU could be had at once."""
    try:
        with lock_file("cpu").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


class Scripted:
    """An executor that looks, while it measures, whether anybody else could."""

    def __init__(self, interprets: bool = False) -> None:
        self.free: list[bool] = []
        self._interprets = interprets

    def prepare(self, cases) -> None:
        pass

    def interprets(self, case: Case) -> bool:
        return self._interprets

    def submit(self, case: Case) -> Record:
        self.free.append(is_free())
        latency = Latency(median_ms=1.0, verdict=["valid"])
        return Record(case_id=case.case_id, case=case.to_dict(), status="ok", latency=latency)

    def measure_ceilings(self, dtypes, known):
        if dtypes:
            self.free.append(is_free())
        return {**known, **{kind: {"verdict": ["valid"]} for kind in dtypes}}


SETTINGS = ExecutorSettings(measure=MeasureSettings(metrics=("latency",)))
CASE = Case(implementation="naive", seqlen_q=8)


def submit(executor: Scripted, settings: ExecutorSettings = SETTINGS) -> tuple[Record, list[str]]:
    notes: list[str] = []
    # The executor here does only what turns ask of it.
    turns = TakingTurns(executor, settings, notes.append)  # type: ignore[arg-type]
    turns.prepare([CASE])
    return turns.submit(CASE), notes


@pytest.mark.parametrize("metric", ["latency", "share", "optimizer", "energy", "dram"])
def test_a_timed_case_has_the_device_for_itself(metric):
    executor = Scripted()
    record, notes = submit(executor, replace(SETTINGS, measure=MeasureSettings(metrics=(metric,))))
    assert executor.free == [False]
    assert is_free()
    assert record.latency.verdict == ["valid"]
    assert notes == []


@pytest.mark.parametrize(
    ("interprets", "metrics"), [(True, ("latency",)), (False, ("agreement", "memory", "traffic"))]
)
def test_what_is_not_timed_needs_no_turn(interprets, metrics):
    executor = Scripted(interprets)
    submit(executor, replace(SETTINGS, measure=MeasureSettings(metrics=metrics)))
    assert executor.free == [True]


def test_a_case_measured_beside_a_stopped_run_is_called_shared(hold, monkeypatch):
    monkeypatch.setattr("attnbench.run.device_lock._GRACE_S", 0.1)
    first = hold(0.2, 60.0)
    os.kill(first.pid, signal.SIGSTOP)
    record, notes = submit(Scripted())
    assert record.latency.verdict == ["shared"]
    assert notes == [
        f"waiting for cpu: process {first.pid}, a run since {SINCE}, measures on it",
        "measured beside another run on cpu, which does not end its turn: `shared`",
    ]


def ceilings(executor: Scripted, known=None) -> tuple[dict[str, dict[str, object]], list[str]]:
    notes: list[str] = []
    turns = TakingTurns(executor, SETTINGS, notes.append)  # type: ignore[arg-type]  # does what turns ask of it
    return turns.measure_ceilings({"cpu": ["float32"]}, known or {}), notes


def test_ceilings_disturb_no_other_run_s_cases():
    executor = Scripted()
    found, notes = ceilings(executor)
    assert executor.free == [False]
    assert is_free()
    assert (found, notes) == ({"cpu": {"verdict": ["valid"]}}, [])


def test_ceilings_that_are_known_need_no_turn():
    executor = Scripted()
    known = {"cpu": {"verdict": ["throttled"]}}
    assert ceilings(executor, known) == (known, [])
    assert executor.free == []


def test_ceilings_measured_beside_a_stopped_run_are_called_shared(hold, monkeypatch):
    monkeypatch.setattr("attnbench.run.device_lock._GRACE_S", 0.1)
    os.kill(hold(0.2, 60.0).pid, signal.SIGSTOP)
    found, notes = ceilings(Scripted())
    assert found == {"cpu": {"verdict": ["shared"]}}
    assert notes[-1] == "measured beside another run on cpu, which does not end its turn: `shared`"


def test_without_a_place_for_the_lock_runs_go_on_and_say_so(monkeypatch, folder):
    monkeypatch.setenv("TMPDIR", str(folder / "nowhere"))
    record, notes = submit(Scripted())
    assert record.status == "ok"
    assert notes == ["other runs can't be kept off cpu: No such file or directory"]
