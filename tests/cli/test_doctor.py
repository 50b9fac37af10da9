"""`attnbench doctor` says what can be measured here, and why not the rest."""

import json
import subprocess
import sys
from typing import Any

import pytest

from attnbench.cli import main
from attnbench.device import probes
from attnbench.measure.dram import trial


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
        assert row["fix"] is None or not row["available"]
    bfloat16 = next(row for row in examined["measurements"] if "bfloat16" in row["backend"])
    assert not bfloat16["available"]
    assert "bit pattern" in bfloat16["detail"]


def test_the_machine_is_described(examined):
    machine = examined["machine"]
    assert machine["default_threads"] >= 1
    assert machine["default_threads_reason"]
    assert isinstance(machine["memory_limit_bytes"], int)
    assert machine["versions"]["torch"]


def test_every_backend_of_dram_bytes_is_there(examined):
    backends = [row["backend"] for row in examined["measurements"] if row["quantity"] == "traffic"]
    assert backends == [
        "aten operators",
        "triton interpreter",
        "dram: ncu",
        "dram: cupti-pm",
        "dram: rocprofv3",
        "dram: nvml-gpm",
    ]


def shown(monkeypatch, capsys, rows: list[probes.Probe], dram: list[probes.Probe]) -> list[str]:
    """The lines that a person gets for these rows."""
    monkeypatch.setattr(probes, "probes", lambda: rows)
    monkeypatch.setattr(trial, "dram_probes", lambda: dram)
    with pytest.raises(SystemExit) as stopped:
        main(["doctor"])
    assert stopped.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_people_get_a_table(monkeypatch, capsys):
    lines = shown(
        monkeypatch,
        capsys,
        [probes.Probe("latency", "clock", True, "1 ns")],
        [probes.Probe("traffic", "dram: ncu", False, "no GPU")],
    )
    words = [" ".join(line.split()) for line in lines]
    assert "quantity backend here why" in words
    assert "traffic dram: ncu no no GPU" in words
    assert "latency clock yes 1 ns" in words
    assert any(line.startswith("threads ") for line in words)
    assert not any("command" in line for line in words)


def test_a_command_that_helps_stands_whole_under_all_that_wait_for_it(monkeypatch, capsys):
    command = "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee FILE && sudo reboot"
    lines = shown(
        monkeypatch,
        capsys,
        [],
        [
            probes.Probe("traffic", "dram: ncu", False, "forbidden", command),
            probes.Probe("traffic", "dram: cupti-pm", False, "forbidden", command),
            probes.Probe("traffic", "dram: nvml-gpm", False, "no GPM"),
        ],
    )
    assert lines[-3:] == [
        "A command that would make more work:",
        "  traffic dram: ncu, traffic dram: cupti-pm",
        f"    {command}",
    ]
