"""`attnbench run` when something goes wrong: kernels that hang, crash or err, a run that is interrupted."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from attnbench.run.store import load_run
from tests.cli.drill import attnbench, by_name, command, environment, write_suite


def processes_in(folder: Path) -> list[int]:
    """Processes that still work in a folder: a forgotten worker or server."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink() == folder and int(link.parent.name) != os.getpid():
                found.append(int(link.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.long
def test_whatever_goes_wrong_costs_its_own_case(folder):
    """A hang, two crashes, an exception, a wrong result, 131,072 tokens; the other cases are `ok`."""
    write_suite("hang", "crash", "kill", "fail", "wrong", more_lengths=(16, 131072), timeout_s=10)
    done = attnbench("run", "drill.toml", "-o", "run", "--memory-limit", "8GiB")
    assert done.returncode == 1, done.stderr
    records = by_name(load_run("run"))
    assert {name: record.status for name, record in records.items()} == {
        "naive 8": "ok",
        "./hang.py 8": "timeout",
        "./crash.py 8": "crashed",
        "./kill.py 8": "crashed",
        "./fail.py 8": "error",
        "./wrong.py 8": "incorrect",
        "naive 16": "ok",
        "naive 131072": "oom",
    }
    assert "SIGSEGV" in records["./crash.py 8"].reason
    assert "SIGKILL" in records["./kill.py 8"].reason
    assert "a block size of 0" in records["./fail.py 8"].reason
    assert all((record.latency is not None) == (record.status == "ok") for record in records.values())
    predicted = records["naive 131072"]
    assert predicted.memory.predicted_peak_bytes >= 2 * 131072**2 * 4
    assert str(predicted.memory.predicted_peak_bytes) in predicted.reason
    assert not processes_in(folder)

    Path("well").touch()
    again = attnbench("run", "--resume", "run", "--memory-limit", "8GiB")
    assert again.returncode == 1, again.stderr
    assert "4 cases to measure, 4 have a result already" in again.stderr
    records = by_name(load_run("run"))
    assert {record.status for name, record in records.items() if "naive" not in name} == {"ok", "incorrect"}
    assert len(load_run("run").meta["launches"]) == 2


def hears_interrupts() -> None:
    """A shell's background jobs ignore SIGINT, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt_a_run(sent: signal.Signals) -> tuple[int, str]:
    """Exit code, and what is said on stderr, of a run with two cases left when `sent` arrives."""
    write_suite("hang")
    process = subprocess.Popen(
        command("run", "drill.toml", "-o", "run"),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hears_interrupts,
    )
    until = time.monotonic() + 120
    while not Path("began").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, sent)  # as a terminal does: everybody in the group
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_run_is_kept_and_says_how_to_resume(folder, sent):
    """Nothing is lost, and the last line says how to go on."""
    code, said = interrupt_a_run(sent)
    assert code == 130
    assert said.splitlines()[-1].endswith("attnbench run --resume run")
    run = load_run("run")
    assert [record.status for record in run.records] == ["ok"]
    assert run.meta["status"] == "interrupted"
    assert len(run.missing) == 2
    assert not processes_in(folder)


@pytest.mark.long
def test_an_interrupted_run_is_resumed(folder):
    code, said = interrupt_a_run(signal.SIGINT)
    assert code == 130, said
    Path("well").touch()
    again = attnbench("run", "--resume", "run")
    assert again.returncode == 0, again.stderr
    assert "2 cases to measure, 1 has a result already" in again.stderr
    run = load_run("run")
    assert [record.status for record in run.records] == ["ok", "ok", "ok"]
    assert len(run.meta["launches"]) == 2
