"""Profilers as real processes: they hang, drown us in output, die, or aren't there."""

import sys
import time
from pathlib import Path

import pytest

from attnbench.measure.dram import ncu
from attnbench.measure.dram.backend import BackendError, HungError
from attnbench.measure.dram.process import KEPT_BYTES, run_profiler
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.run.executor import ExecutorSettings, LocalExecutor
from tests.measure.dram.fakes import alive, put_on_path, small_job
from tests.measure.dram.tasks import HANGS


def test_a_profiler_that_hangs_is_killed_with_all_it_started(tmp_path, monkeypatch):
    pids = tmp_path / "pids"
    program = put_on_path(tmp_path, "ncu", "", monkeypatch)
    program.write_text(f"#!/bin/sh\n{HANGS.format(pids=pids)}\n", encoding="utf-8")
    began = time.monotonic()
    with pytest.raises(HungError, match="ncu did not end within 3 s and was killed"):
        ncu.measure(small_job(), 3)
    assert time.monotonic() - began < 60
    assert all_end(pids)


@pytest.mark.long
def test_a_worker_that_is_killed_takes_its_profiler_along(tmp_path):
    """When the case's time is over, the executor kills the worker's group, and the profiler is in it."""
    settings = ExecutorSettings(
        measure=MeasureSettings(case_timeout_s=10),
        scratch=tmp_path,
        log=tmp_path / "log",
        preload=(),
        task="tests.measure.dram.tasks:hang",
        route=None,
    )
    with LocalExecutor(settings) as executor:
        record = executor.submit(Case(implementation="naive", seqlen_q=16))
    assert record.status == "timeout"
    assert all_end(tmp_path / "pids")


def all_end(pids: Path) -> bool:
    """Whether the two processes of the file are, or soon will be, no more."""
    started = [int(pid) for pid in pids.read_text(encoding="ascii").split()]
    assert len(started) == 2
    until = time.monotonic() + 10
    while any(map(alive, started)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, started))


def test_endless_output_takes_no_memory(tmp_path):
    code = "import sys\nwhile True: sys.stdout.write('garbage ' * 1000)"
    with pytest.raises(HungError):
        run_profiler([sys.executable, "-c", code], 2, tmp_path)
    code = f"print('x' * {3 * KEPT_BYTES}); print('the end')"
    printed = run_profiler([sys.executable, "-c", code], 30, tmp_path)
    assert len(printed) <= KEPT_BYTES
    assert printed.endswith("the end\n")


def test_garbage_is_said_to_be_garbage(tmp_path, monkeypatch):
    script = "sys.stdout.buffer.write(bytes(range(256)) * 10 + b'\\nSegmentation fault\\n')\n"
    put_on_path(tmp_path, "ncu", script, monkeypatch)
    with pytest.raises(BackendError, match="ncu wrote no table; its last words: Segmentation fault"):
        ncu.measure(small_job(), 30)


def test_a_profiler_that_dies_silently(tmp_path, monkeypatch):
    put_on_path(tmp_path, "ncu", "os.kill(os.getpid(), 9)\n", monkeypatch)
    with pytest.raises(BackendError, match="ncu wrote no table; it printed nothing"):
        ncu.measure(small_job(), 30)


def test_a_profiler_that_can_not_be_started(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="ncu can't be started: No such file or directory") as error:
        ncu.measure(small_job(), 30)
    assert error.value.lasting


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    put_on_path(tmp_path, "ncu", "open(os.path.join(os.environ['TMPDIR'], 'lock'), 'w')\n", monkeypatch)
    with pytest.raises(BackendError):
        ncu.measure(small_job(), 30)
    assert list(Path(temporary).iterdir()) == []
