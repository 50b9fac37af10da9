"""`attnbench doctor` says what can be measured here, and why not the rest."""

import json
import subprocess
import sys
from typing import Any

import pytest

from attnbench.cli import main
from attnbench.device import probes


@pytest.fixture(scope="module")
def examined() -> dict[str, Any]:
    """What `attnbench doctor --json` prints, in a process of its own."""
    command = [sys.executable, "-m", "attnbench", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_needs_no_gpu_is_available(examined):
    here = {(row["quantity"], row["backend"]): row for row in examined["measurements"]}
    for needed in [
        ("latency", "perf_counter (cpu)"),
        ("memory", "tensor lifetimes"),
        ("flops", "closed forms"),
        ("traffic", "aten operators"),
        ("traffic", "triton interpreter"),
        ("agreement", "float64 reference"),
        ("kernels", "compiled ahead of time"),
    ]:
        assert here[needed]["available"], here[needed]


def test_whatever_is_missing_has_a_reason(examined):
    for row in examined["measurements"]:
        assert row["detail"], row
    bfloat16 = next(row for row in examined["measurements"] if "bfloat16" in row["backend"])
    assert not bfloat16["available"]
    assert "bit pattern" in bfloat16["detail"]


def test_the_machine_is_described(examined):
    machine = examined["machine"]
    assert machine["default_threads"] >= 1
    assert machine["default_threads_reason"]
    assert isinstance(machine["memory_limit_bytes"], int)
    assert machine["versions"]["torch"]


def test_people_get_a_table(monkeypatch, capsys):
    rows = [
        probes.Probe("traffic", "ncu", False, "ncu is not on PATH"),
        probes.Probe("latency", "clock", True, "1 ns"),
    ]
    monkeypatch.setattr(probes, "probes", lambda: rows)
    with pytest.raises(SystemExit) as stopped:
        main(["doctor"])
    assert stopped.value.code == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "quantity backend here why" in lines
    assert "traffic ncu no ncu is not on PATH" in lines
    assert "latency clock yes 1 ns" in lines
    assert any(line.startswith("threads ") for line in lines)
