"""A suite with kernels that misbehave, and `attnbench` as a process.

Shared by the tests in this folder.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from attnbench.measure.record import Record
from attnbench.run.store import Run

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
