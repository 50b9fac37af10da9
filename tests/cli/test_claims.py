"""`attnbench claims` gives every claim a verdict; one that fails is a finding, a mistake one clear line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.analysis.claims import load_claims
from attnbench.cli import main
from attnbench.contract.errors import UsageError
from attnbench.measure.claims import checks
from attnbench.run.store import RunWriter
from tests.analysis.synthetic import META, make_record

FIELDS = {"id", "statement", "source", "expected", "measured", "verdict"}
PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
CPU_SECONDS = 60


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code and what was printed."""
    with pytest.raises(SystemExit) as stopped:
        main(["claims", *arguments])
    return stopped.value.code, *capsys.readouterr()


def told() -> dict[str, str]:
    """The verdicts of the page."""
    return dict(re.findall(r"^\| `([\w-]+)` \| ([\w ]+) \|", PAGE.read_text("utf-8"), re.MULTILINE))


def test_the_page_has_every_claim_with_a_verdict() -> None:
    assert list(told()) == [claim.id for claim in load_claims()]
    assert set(told().values()) <= {"holds", "fails", "needs a GPU"}
    for claim in load_claims():
        assert (told()[claim.id] == "needs a GPU") == (claim.needs == "a GPU"), claim.id


@pytest.mark.long
def test_every_claim_has_a_verdict_without_a_gpu() -> None:
    """In a process of its own, which no test has prepared for interpreting kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    before = os.times()
    command = [sys.executable, "-W", "error", "-m", "attnbench", "claims", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment)
    after = os.times()
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert [row["id"] for row in rows] == [claim.id for claim in load_claims()]
    for row in rows:
        assert set(row) >= FIELDS
        assert row["verdict"] == told()[row["id"]], row
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < CPU_SECONDS


def test_text_of_80_columns_and_json_say_the_same(capsys) -> None:
    asked = ("--only", "gpt2-flops-printed", "--only", "matrix-at-128k", "--only", "flash-speed")
    code, out, err = run(capsys, *asked)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  ✗ 6 matmuls of 2·B·H·n²·d             66.6 GFLOP ± 5 %   825 GFLOP" in lines
    assert "  ✓ scores of a head, bfloat16          10.0 GB to 100 GB  34.4 GB" in lines
    assert lines[-1] == "3 claims: 1 fails, 1 holds, 1 needs a GPU"
    code, out, _ = run(capsys, *asked, "--json")
    rows = {row["id"]: row for row in json.loads(out)}
    assert rows["matrix-at-128k"]["measured"] == {"head_bytes": 131072**2 * 2}
    assert rows["matrix-at-128k"]["expected"]["head_bytes"]["at_most"] == 100e9
    assert rows["gpt2-flops-printed"]["measured"] == {
        "plain_flops": 6 * 2 * 1024 * 1024**2 * 64,
        "tiled_flops": 7 * 2 * 1024 * 1024**2 * 64,
    }
    assert rows["flash-speed"]["measured"] == {"least_speedup": None, "largest_speedup": None}


def test_a_run_on_a_gpu_judges_what_needs_one(capsys, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunWriter.create(
        folder, {key: value for key, value in META.items() if key != "schema_version"}
    ) as to:
        for n in (1024, 2048, 4096):
            to.append(make_record("naive", n, latency_ms=3 * n, noise=0.01, device="cuda"))
            to.append(make_record("triton-flash", n, latency_ms=n, noise=0.01, device="cuda"))
    code, out, _ = run(capsys, "--run", str(folder), "--only", "flash-speed")
    assert code == 0
    assert out.startswith("flash-speed: holds\n")
    assert "speed-up from n = 1k on, least      ≥ 2                3 (2.94 to 3.06)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "flash-sped"), "unknown claim 'flash-sped' (did you mean 'flash-speed'?)"),
        (("--run", "nowhere"), "no run 'nowhere': there is no such folder"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"attnbench: {message}")
    assert err.count("\n") == 1


def test_what_can_not_be_measured_here_is_said_and_costs_no_other_claim(capsys, monkeypatch) -> None:
    def refuse(**_):
        raise UsageError("implementation 'naive' can't be used here")

    monkeypatch.setitem(checks.CHECKS, "heads-against-one", refuse)
    code, out, err = run(capsys, "--only", "heads-cost", "--only", "gpt2-flops-corrected")
    assert code == 1
    assert "heads-cost" not in out
    assert out.splitlines()[-1] == "1 claim: 1 holds"
    assert err == "heads-cost could not be measured: implementation 'naive' can't be used here\n"
