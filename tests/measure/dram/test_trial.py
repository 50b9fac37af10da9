"""What `attnbench doctor` learns of the backends: probed where they can't work, tried where they may."""

import subprocess
import sys

import pytest

from attnbench.device.probes import Probe
from attnbench.device.requirements import Finding
from attnbench.measure.dram import trial
from attnbench.measure.dram.backend import BackendError, DramBytes
from attnbench.measure.dram.job import known_job
from tests.measure.dram.fakes import put_on_path
from tests.measure.dram.test_choose import Fake


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """The known call in small and on the CPU; returns the bytes that it reads."""
    job = known_job("cpu", rows=1)
    monkeypatch.setattr("attnbench.measure.dram.job.known_job", lambda device: job)
    return 14336 * 2


def test_the_known_call_reads_one_matrix_and_writes_another():
    job = known_job("cpu", rows=1)
    assert job.resident_bytes == 2 * 14336 * 2
    assert job.spec == {"known": "cpu", "rows": 1}
    assert job.call().shape == (1, 14336)


def test_what_was_tried_is_judged_by_its_reads(small):
    assert trial.try_backend(Fake("a", DramBytes(read=small, write=0))).available
    half = trial.try_backend(Fake("a", DramBytes(read=small // 2, write=small)))
    assert half == (
        False,
        "counted 0.500 of the bytes that a known call reads, 1.000 of those it writes",
        None,
    )
    estimate = trial.try_backend(Fake("a", DramBytes(total=small, note="estimate")))
    assert estimate == (True, "estimate: 0.500 of the bytes of a known call", None)


def test_what_failed_keeps_its_advice(small):
    failed = trial.try_backend(Fake("a", BackendError("another program", "dcgmi profile --pause")))
    assert failed == (False, "another program", "dcgmi profile --pause")
    assert trial.try_backend(Fake("a", ValueError("bad"))) == (False, "ValueError: bad", None)


def test_nothing_is_tried_without_hope(monkeypatch):
    backends = [
        Fake("ncu", finding=Finding(False, "no GPU")),
        Fake("b", finding=Finding(False, "old", "new")),
    ]
    monkeypatch.setattr(trial, "BACKENDS", backends)
    monkeypatch.setattr(trial, "_in_a_process", lambda name: pytest.fail("tried"))
    rows = [(row.quantity, row.backend, row.available, row.fix) for row in trial.dram_probes()]
    assert rows == [("traffic", "dram: ncu", False, None), ("traffic", "dram: b", False, "new")]


@pytest.mark.parametrize(
    ("script", "limit_s", "finding"),
    [
        ("print('noise'); print('[true, \"counted\", null]')\n", 60, Finding(True, "counted")),
        ("print('Segmentation fault')\n", 60, Finding(False, "the trial crashed: Segmentation fault")),
        ("", 60, Finding(False, "the trial crashed: it said nothing")),
        ("time.sleep(60)\n", 1, Finding(False, "python did not end within 2 s and was killed")),
    ],
)
def test_a_trial_may_crash_or_hang(tmp_path, monkeypatch, script, limit_s, finding):
    program = put_on_path(tmp_path, "python", script, monkeypatch)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(trial, "LIMIT_S", limit_s)
    monkeypatch.setattr(trial, "BACKENDS", [Fake("ncu")])
    assert trial.dram_probes()[0] == Probe("traffic", "dram: ncu", *finding)


def test_probing_loads_no_torch():
    code = (
        "import sys; from attnbench.measure.dram.trial import dram_probes; dram_probes(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_process_prints_what_became_of_its_backend(small, monkeypatch, capsys):
    monkeypatch.setattr(trial, "BACKENDS", [Fake("a"), Fake("b", BackendError("forbidden", "a command"))])
    trial.main("b")
    assert capsys.readouterr().out == '[false,"forbidden","a command"]\n'
