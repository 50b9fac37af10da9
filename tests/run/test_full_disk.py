"""A disk that fills mid-run: what was measured is kept, the run says so, and with room it goes on."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnbench.run.worker import Job, run_job

LENGTHS = list(range(1, 33))
SUITE = f"""
name = "filling"
[[sweep]]
implementation = "naive"
num_heads = 1
head_dim = 8
seqlen = {LENGTHS}
[measure]
metrics = ["latency"]
latency_budget_s = 0.01
warmup_s = 0
min_samples = 3
"""
# In a mount namespace of its own: a run on a small file system, what it left, room, and the run continued.
DRILL = """
mount -t tmpfs -o size=64k attnbench small || exit 77
{attnbench} run filling.toml -o small/run --isolate none
echo $? > code
cp -r small/run before
mount -o remount,size=8m small
{attnbench} run --resume small/run --isolate none && cp -r small/run after
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a suite of many small cases."""
    (tmp_path / "filling.toml").write_text(SUITE, encoding="utf-8")
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    project = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([project, os.environ.get("PYTHONPATH", "")]))
    return tmp_path


@pytest.mark.long
def test_a_run_on_a_full_disk_loses_nothing_and_goes_on_with_room(folder):
    script = DRILL.format(attnbench=f"{sys.executable} -m attnbench")
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs unshare(1), to mount a small file system")
    if not (folder / "code").exists():
        pytest.skip(f"may not mount a small file system: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert (folder / "code").read_text(encoding="ascii").strip() == "1"
    kept = records_in(folder / "before")
    assert 3 <= len(kept) < len(LENGTHS)
    assert f"(No space left on device): its {len(kept)} records are kept; make room, then: " in done.stderr
    assert "attnbench run --resume small/run" in done.stderr
    assert "Traceback" not in done.stderr
    whole = records_in(folder / "after")
    assert whole[: len(kept)] == kept
    assert sorted(record["case"]["seqlen_k"] for record in whole) == LENGTHS
    assert {record["status"] for record in whole} == {"ok"}


def records_in(folder: Path) -> list[dict[str, Any]]:
    """The records of a copy of a run; every line is whole."""
    text = (folder / "records.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_a_log_that_cannot_grow_costs_a_case_nothing(monkeypatch):
    """The traceback of a failed case is for the log; the status must not wait for room there."""

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            return Path("/dev/full").write_text(text, encoding="utf-8")

    monkeypatch.setattr(sys, "stderr", Full())
    answer = run_job(Job(task="tests.run.tasks:raise_error", case={}, settings={}, context={}))
    monkeypatch.undo()
    assert (answer.status, answer.reason) == ("error", "ZeroDivisionError: a block size of 0")
