"""Profilers that need no GPU: real programs on PATH that behave as real ones may. And a job for them."""

import os
import sys
from pathlib import Path

import pytest
import torch

from attnbench.measure.dram.job import Job

SAMPLES = Path(__file__).parent / "samples"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def put_on_path(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a program of the lines of Python in ``script``; ``log`` is the file that ncu is to write."""
    program = folder / name
    start = f"#!{sys.executable}\nimport os, subprocess, sys, time\nargs = sys.argv[1:]\n"
    log = "log = args[args.index('--log-file') + 1] if '--log-file' in args else None\n"
    program.write_text(start + log + script, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return program


ANSWERS = "import json; json.dump({'bytes': {}}, open(json.loads(args[-1])['answer'], 'w'))\n"
"""What the child below a profiler does when its call is over."""


def writes(name: str) -> str:
    """The script of an ncu that takes a sample for its result."""
    return f"import shutil; shutil.copy({str(SAMPLES / name)!r}, log)\n{ANSWERS}"


def small_job(**changes) -> Job:
    x = torch.ones(4)
    fields = {"spec": {"known": "cpu", "rows": 1}, "device": x.device, "prepare": lambda: None}
    return Job(**{**fields, "call": lambda: x * 2, **changes})


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
