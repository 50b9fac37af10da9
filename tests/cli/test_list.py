"""`attnbench list` says what there is, and what is broken and why, for people and machines."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnbench.cli import main
from attnbench.cli.list import TOPICS
from attnbench.contract.discovery import find_implementations
from attnbench.model.presets import preset_names, preset_weights
from attnbench.plan.settings import METRICS
from attnbench.plan.suite import suite_names


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what `attnbench list` prints."""
    with pytest.raises(SystemExit) as stopped:
        main(["list", *arguments])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def rows_of(capsys: pytest.CaptureFixture[str], topic: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(output_of(capsys, topic, "--json"))}


def test_implementations(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(capsys, "implementations")
    assert {name for name, row in rows.items() if row["status"] == "usable"} == set(find_implementations())
    assert rows["naive"]["memory"] == "O(n²)"
    assert "backward" in rows["naive"]["supports"]
    assert rows["naive"]["semantics"] == "softmax"


def test_suites(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(capsys, "suites")
    assert {"agreement", "approximation", "attention", "quick"} <= set(rows) == set(suite_names())
    assert 0 < rows["attention"]["cases"] <= 450


def test_presets(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(capsys, "presets")
    assert (rows["llama-3-8b"]["num_heads"], rows["llama-3-8b"]["num_kv_heads"]) == (32, 8)
    assert rows["bert-base"]["architecture"] == "encoder-only"
    assert rows["bert-base"]["encoder_mask"] == {"name": "full"}
    assert 124e6 < rows["gpt2"]["params"] < 125e6
    assert 8.0e9 < rows["llama-3-8b"]["params"] < 8.1e9
    assert {name for name, row in rows.items() if row["weights"] == "trained"} == set(
        filter(preset_weights, preset_names())
    )


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    processor = rows_of(capsys, "devices")["cpu"]
    assert processor["memory_bytes"] > 0
    assert processor["threads"] >= 1


def test_masks(capsys: pytest.CaptureFixture[str]) -> None:
    assert rows_of(capsys, "masks")["sliding-window"]["parameters"] == ["window_size", "causal"]


def test_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(capsys, "metrics")
    assert set(METRICS) == set(rows)
    assert "mixers" in rows["share"]["summary"]
    assert "perplexity" in rows["quality"]["summary"]
    assert "state_bytes" in rows["memory"]["summary"]


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output_of(capsys, "masks").splitlines()
    assert lines[0].split() == ["name", "parameters", "summary"]
    assert [line.split()[0] for line in lines[1:]] == list(rows_of(capsys, "masks"))


def test_everything_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(json.loads(output_of(capsys, "--json"))) == list(TOPICS)
    table = output_of(capsys)
    assert all(topic.upper() in table for topic in TOPICS)


def test_what_is_broken_is_listed_with_its_reason(tmp_path: Path) -> None:
    """An installed package whose entry point can't be loaded, in a process of its own."""
    folder = tmp_path / "broken-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[attnbench.implementations]\nbroken = broken_package:THING\n")
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", "list", "implementations"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("entry point broken"))
    assert "can't be used here: ModuleNotFoundError: No module named 'broken_package'" in line
    assert "\nnaive" in done.stdout


def test_a_terminal_breaks_no_identifier(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TERM", "dumb"), ("FORCE_COLOR", "1"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    lines = output_of(capsys, "presets").splitlines()
    assert max(map(len, lines)) <= 80
    assert any("encoder-decoder  63.0 M" in line for line in lines)
    assert "    arXiv 1706.03762, table 3" in lines
