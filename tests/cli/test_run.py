"""`attnbench run` as a person meets it: real processes, a suite of their own, a kernel that misbehaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.cli.run import parse_bytes
from attnbench.contract.errors import UsageError
from attnbench.measure.record import Record
from attnbench.run.store import Run, load_run

SUITE = """
name = "drill"
description = "Small cases, some of which go wrong"

[defaults]
mask = "causal"
num_heads = 2
head_dim = 16

[[sweep]]
seqlen = 8
implementation = {implementations}

[[sweep]]
seqlen = {more_lengths}
implementation = "naive"

[measure]
metrics = ["memory", "agreement", "latency"]
case_timeout_s = {timeout_s}
launches = 2
latency_budget_s = 0.05
warmup_s = 0
min_samples = 2
"""

MISSPELT = """name = "option"
[[sweep]]
implementation = { name = "linear", chunk_siz = 3 }
seqlen = 8
"""

KERNEL = '''
"""Somebody's kernel: naive, but it does what its file is called, unless there is a file `well` beside it."""

import ctypes
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from attnbench.implementations.naive import IMPLEMENTATION as NAIVE

FILE = Path(__file__)


def attention(q, k, v, *, problem, params=None):
    deed = "well" if FILE.with_name("well").exists() else FILE.stem
    out = NAIVE.attention(q, k, v, problem=problem, params=params)
    if deed == "hang":
        FILE.with_name("began").touch()
        time.sleep(600)
    elif deed == "crash":
        ctypes.string_at(0)
    elif deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif deed == "fail":
        raise ZeroDivisionError("a block size of 0")
    elif deed == "wrong":
        out = out._replace(out=out.out * 1.01)
    return out


IMPLEMENTATION = replace(NAIVE, name=FILE.stem, attention=attention)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_suite(*kernels: str, more_lengths: tuple[int, ...] = (16,), timeout_s: float = 60) -> None:
    """A suite of naive and of kernels that do what they are called; `drill.toml` and the kernels' files."""
    for kernel in kernels:
        Path(kernel + ".py").write_text(KERNEL, encoding="utf-8")
    names = json.dumps(["naive", *(f"./{kernel}.py" for kernel in kernels)])
    text = SUITE.format(implementations=names, more_lengths=list(more_lengths), timeout_s=timeout_s)
    Path("drill.toml").write_text(text, encoding="utf-8")


def by_name(run: Run) -> dict[str, Record]:
    """Records by implementation and length."""
    return {f"{record.case['implementation']} {record.case['seqlen_k']}": record for record in run.records}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "attnbench", *arguments]


def environment() -> dict[str, str]:
    """Ours, with the project importable from another folder."""
    project = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([project, os.environ.get("PYTHONPATH", "")])}


def attnbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), env=environment(), capture_output=True, text=True, check=False)


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that exits with 2."""
    with pytest.raises(SystemExit) as stopped:
        main(["run", *arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    return line


def test_a_run_from_beginning_to_end(folder):
    write_suite()
    done = attnbench("run", "drill.toml", "-o", "run")
    assert done.returncode == 0, done.stderr
    assert "2 cases to measure; run run" in done.stderr
    assert "[2/2]" in done.stderr
    assert "launch 2 of 2: 2 cases" in done.stderr
    assert "attnbench report run" in done.stdout
    run = load_run("run")
    assert [record.status for record in run.records] == ["ok", "ok"]
    assert all(record.latency.launches == 2 and record.latency.ci95_low_ms for record in run.records)
    assert run.meta["status"] == "complete"
    assert 0 < run.meta["work_s"] < run.meta["wall_s"]
    assert run.meta["suite"]["text"] == Path("drill.toml").read_text(encoding="utf-8")
    assert run.meta["command"] == ["attnbench", "run", "drill.toml", "-o", "run"]
    assert run.meta["versions"]["torch"]
    assert run.meta["environment"]["cpu"]["logical_cores"] >= 1
    assert run.problems == []

    kept = attnbench("run", "--resume", "run", "--json")
    assert kept.returncode == 0, kept.stderr
    assert "0 cases to measure, 2 have a result already" in kept.stderr
    assert [record["status"] for record in json.loads(kept.stdout)] == ["ok", "ok"]


@pytest.mark.long
def test_a_kernel_that_was_edited_is_measured_again(folder):
    """Resuming keeps the results of a source that is the same, and no others."""
    write_suite("mine")
    started = attnbench("run", "drill.toml", "-o", "run")
    assert started.returncode == 0, started.stderr
    Path("mine.py").write_text(KERNEL.replace('deed == "wrong"', 'deed == "mine"'), encoding="utf-8")
    resumed = attnbench("run", "--resume", "run")
    assert resumed.returncode == 1, resumed.stderr
    assert "1 result is of another source of ./mine.py: measured again" in resumed.stderr
    assert "2 have a result already" in resumed.stderr
    records = by_name(load_run("run"))
    assert {name: record.status for name, record in records.items()} == {
        "naive 8": "ok",
        "./mine.py 8": "incorrect",
        "naive 16": "ok",
    }
    unchanged = attnbench("run", "--resume", "run")
    assert "0 cases to measure, 3 have a result already" in unchanged.stderr
    assert "measured again" not in unchanged.stderr
    Path("mine.py").write_text("import os; os._exit(3)", encoding="utf-8")
    broken = attnbench("run", "--resume", "run")
    assert "2 have a result already" in broken.stderr
    assert by_name(load_run("run"))["./mine.py 8"].status == "crashed"


@pytest.mark.long
def test_the_readme_s_command_with_somebody_s_file(folder):
    """`run quick` with a file of another folder: every case, at both levels, is `ok`."""
    Path("my_kernel.py").write_text(KERNEL, encoding="utf-8")
    done = attnbench("run", "quick", "--implementation", "./my_kernel.py", "--seqlen", "64")
    assert done.returncode == 0, done.stderr
    (path,) = Path("runs").iterdir()
    records = load_run(path).records
    assert {record.status for record in records} == {"ok"}
    assert {record.case["implementation"] for record in records} == {"./my_kernel.py"}
    assert {record.case["level"] for record in records} == {"attention", "model"}
    assert all(record.latency is not None and record.agreement is not None for record in records)


def in_this_process(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code, and what is said on stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return int(stopped.value.code or 0), capsys.readouterr().err


def test_empty_cases_are_measured_and_reported(folder, capsys):
    """No tokens: `ok`, no latency, and a report without a word on stderr."""
    write_suite(more_lengths=(0,))
    code, said = in_this_process(capsys, "run", "drill.toml", "-o", "run", "--isolate", "none")
    assert code == 0, said
    empty = by_name(load_run("run"))["naive 0"]
    assert (empty.status, empty.latency) == ("ok", None)
    assert empty.unavailable["latency"] == "empty: there is nothing to compute"
    assert in_this_process(capsys, "report", "run") == (0, "")
    assert "length 0: in the table" in Path("run/report.html").read_text(encoding="utf-8")


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


def interrupt_a_run(folder: Path, sent: signal.Signals) -> None:
    """Of two cases left when `sent` arrives, nothing is lost, and the last line says how to go on."""
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
    assert process.returncode == 130
    assert said.splitlines()[-1].endswith("attnbench run --resume run")
    run = load_run("run")
    assert [record.status for record in run.records] == ["ok"]
    assert run.meta["status"] == "interrupted"
    assert len(run.missing) == 2
    assert not processes_in(folder)


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_run_is_kept_and_says_how_to_resume(folder, sent):
    interrupt_a_run(folder, sent)


@pytest.mark.long
def test_an_interrupted_run_is_resumed(folder):
    interrupt_a_run(folder, signal.SIGINT)
    Path("well").touch()
    again = attnbench("run", "--resume", "run")
    assert again.returncode == 0, again.stderr
    assert "2 cases to measure, 1 has a result already" in again.stderr
    run = load_run("run")
    assert [record.status for record in run.records] == ["ok", "ok", "ok"]
    assert len(run.meta["launches"]) == 2


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


def test_a_dry_run_names_the_cases_and_writes_nothing(folder, capsys):
    write_suite()
    with pytest.raises(SystemExit) as stopped:
        main(["run", "drill.toml", "--dry-run", "--seqlen", "1k", "-o", "run"])
    assert stopped.value.code == 0
    said = capsys.readouterr()
    assert "n1024" in said.out
    assert said.err == "1 case in at most 2 launches; nothing was run\n"
    assert not (folder / "run").exists()


def test_usage_errors_are_one_line_and_come_before_anything_runs(folder, capsys):
    write_suite()
    Path("file").touch()
    Path("nothing").mkdir()
    Path("leave.py").write_text("import os; os._exit(0)", encoding="utf-8")
    Path("exit.py").write_text("raise SystemExit(0)", encoding="utf-8")
    Path("option.toml").write_text(MISSPELT, encoding="utf-8")
    before = sorted(path.name for path in folder.iterdir())
    expected = {
        ("drill.toml", "--isolate", "cases"): "unknown isolation 'cases' (did you mean 'case'?)",
        ("",): "unknown suite ''",
        ("drill.toml", "--memory-limit", "8 gigs"): "'8 gigs' is not a number of bytes",
        ("drill.toml", "--device", "cuda:7"): "no device 'cuda:7'",
        ("drill.toml", "--implementation", "naiv"): "naiv",
        ("option.toml",): "option.toml:2: sweep 1: linear has no option 'chunk_siz' (did you mean",
        ("drill.toml", "--implementation", "./leave.py"): "'./leave.py' ends the process that imports it",
        ("drill.toml", "--implementation", "./exit.py"): "'./exit.py' can't be imported: SystemExit: 0",
        ("dril.toml",): "dril.toml",
        ("drill.toml", "-o", "file/run"): "can't make the output folder 'file/run': Not a directory",
        ("drill.toml", "-o", "/proc/run"): "can't make the output folder '/proc/run'",
        ("--resume", "nowhere"): "no run 'nowhere'",
        ("--resume", "nothing"): "has no run.json",
        ("--resume", "nothing", "-o", "run"): "--output names the folder of a new run",
        ("--resume", "nothing", "--seqlen", "8"): "--resume continues a run as it was planned",
    }
    for arguments, words in expected.items():
        assert words in usage_error(capsys, *arguments), arguments
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("8589934592", 2**33),
        ("8GiB", 2**33),
        ("1.5 KiB", 1536),
        ("2kB", 2000),
        ("7B", 7),
        (str(2**80), 2**80),
    ],
)
def test_bytes_as_people_write_them(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "8G", "GiB", "1e9", "nan", "0.1", "8 GiB x"])
def test_what_is_no_number_of_bytes(text):
    with pytest.raises(UsageError, match="is not a number of bytes"):
        parse_bytes(text)
