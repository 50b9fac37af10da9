"""Whoever is killed, and whenever: after `--resume` every case is read once and nobody is left behind."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench.run.store import load_run

DRILLS, MEASURED_DRILLS = 50, 3
BRIEF = """
import functools, sys
from attnbench.cli import main
from attnbench.run import runner

runner.ExecutorSettings = functools.partial(
    runner.ExecutorSettings,
    preload=("attnbench.plan.case", "tests.run.tasks"),
    task="tests.run.tasks:brief",
    again="tests.run.tasks:brief",
    route="tests.run.tasks:route",
)
main(sys.argv[1:])
"""
"""The command with cases that only pass the time: its processes start in a fraction of a second."""
WHOLE = "from attnbench.cli import main; main()"
SUITE = """
name = "drill"
[[sweep]]
implementation = ["naive", "sdpa"]
num_heads = 1
head_dim = 8
seqlen = [4, 8, 12, 16]
[measure]
metrics = ["latency"]
launches = 2
latency_budget_s = 0.01
warmup_s = 0
min_samples = 3
reference_rows = 4
"""
CASES = 8
LONGEST_S = 300


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; processes of the drill are known by their temporary folder."""
    (tmp_path / "drill.toml").write_text(SUITE, encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    project = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([project, os.environ.get("PYTHONPATH", "")]))
    return tmp_path


def processes(folder: Path) -> list[int]:
    """Every process of a run of this drill that is alive."""
    mark = f"TMPDIR={folder / 'tmp'}".encode()
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        pid = int(file.parent.name)
        try:
            if pid != os.getpid() and mark in file.read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def worker_of(parent: int) -> int | None:
    """A process that the fork server of a run has forked, if there is one now."""
    servers = children(parent)
    workers = [worker for server in servers for worker in children(server)]
    return random.choice(workers) if workers else None


def children(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, "run", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def lines_of(folder: Path) -> Iterator[str]:
    """Ids of the whole lines of a run, in order."""
    content = (folder / "run" / "records.jsonl").read_text(encoding="utf-8")
    for line in content.split("\n")[:-1]:
        yield json.loads(line)["case_id"]


def wait_until_gone(folder: Path) -> None:
    until = time.monotonic() + 30
    while (left := processes(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def drill(folder: Path, program: str, seed: int, usual_s: float) -> tuple[str, float]:
    """Start a run, kill its parent or a worker at a random moment, and resume until it is complete.

    Returns who was killed and how long the run that nobody disturbed took.
    """
    rng = random.Random(seed)
    victim = rng.choice(["parent", "worker", "server and parent"])
    process = start(program, "drill.toml", "-o", "run")
    time.sleep(rng.uniform(0.0, usual_s))
    if victim == "worker":
        until = time.monotonic() + LONGEST_S
        while (worker := worker_of(process.pid)) is None and process.poll() is None:
            assert time.monotonic() < until
        if worker is not None:
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                worker = None
        _, said = process.communicate(timeout=LONGEST_S)
        assert process.returncode in (0, 1), said
        killed = "worker" if worker is not None else "nobody"
    else:
        for pid in children(process.pid) if victim.startswith("server") else []:
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate(timeout=LONGEST_S)
        killed = victim
    wait_until_gone(folder)
    before = list(lines_of(folder)) if (folder / "run" / "records.jsonl").exists() else []
    began = time.monotonic()
    resumable = (folder / "run" / "run.json").exists()
    again = start(program, *(["--resume", "run"] if resumable else ["drill.toml", "-o", "again"]))
    _, said = again.communicate(timeout=LONGEST_S)
    took_s = time.monotonic() - began
    assert again.returncode == 0, said
    if not resumable:
        assert before == []
        return f"{killed}, before there was a run", took_s
    run = load_run("run")
    assert run.problems == []
    assert run.missing == []
    assert run.meta["status"] == "complete"
    assert Counter(record.case_id for record in run.records) == Counter(dict.fromkeys(run.planned, 1))
    assert len(run.records) == CASES
    assert {record.status for record in run.records} == {"ok"}
    after = list(lines_of(folder))
    assert after[: len(before)] == before, "what was written stays"
    return killed, took_s


def drill_often(folder: Path, program: str, times: int) -> Counter[str]:
    """Drill with other seeds; returns who was killed how often. Afterwards nothing is left."""
    killed: Counter[str] = Counter()
    usual_s = 1.0
    for seed in range(times):
        who, took_s = drill(folder, program, seed, usual_s)
        killed[who] += 1
        usual_s = min(max(took_s, 0.5), 20.0)  # so that moments are spread over a whole run on any machine
        for path in ("run", "again"):
            shutil.rmtree(folder / path, ignore_errors=True)
    left = [path.name for path in (folder / "tmp").iterdir() if path.name.startswith("attnbench-")]
    assert left == ["attnbench-cpu.lock"], "the next run removes what a killed one left"
    return killed


@pytest.mark.long
def test_after_fifty_kills_every_case_is_read_once(folder):
    killed = drill_often(folder, BRIEF, DRILLS)
    assert killed["worker"] >= DRILLS // 10, killed
    assert killed["parent"] >= DRILLS // 10, killed


@pytest.mark.long
def test_the_same_with_cases_that_are_measured(folder):
    assert drill_often(folder, WHOLE, MEASURED_DRILLS).total() == MEASURED_DRILLS
