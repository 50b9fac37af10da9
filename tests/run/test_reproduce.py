"""A record's command, given to a shell, plans the same case, whatever it is called and whatever it holds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnbench.measure.record import Record
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.plan.suite import Suite, load_suite
from attnbench.plan.writing import suite_text
from attnbench.run.launch import Plan, reproduce_command
from attnbench.run.rounds import Observer, run_cases
from attnbench.run.store import RunWriter, load_run

HOSTILE = 'it\'s "100%" \\n \\\\ $HOME `id`; é 🐈\x7f\t'
KERNEL = """
from dataclasses import replace
from attnbench.implementations.naive import IMPLEMENTATION as NAIVE
IMPLEMENTATIONS = (replace(NAIVE, name="one", options={"n%": 1}), replace(NAIVE, name="two"))
"""
FILE = "./my 'kernel' $x.py"
CASES = [
    Case(implementation="naive", seqlen_q=300),
    Case(implementation="naive", seqlen_q=4, seqlen_k=9, scale=1e-05, batch=2, key_lengths=(9, 7)),
    Case(implementation="naive", seqlen_q=3, seqlen_k=9, batch=2, query_start=(2, 6), mode="fwd_bwd"),
    Case(implementation="sdpa", seqlen_q=1, seqlen_k=9, mode="decode", dtype="float16", cache="warm"),
    Case(implementation="triton-flash", seqlen_q=64, options={"block_q": 16, "num_warps": 4}, threads=1),
    Case(implementation="naive", seqlen_q=8, options={"return_lse": True}, num_heads=4, num_kv_heads=2),
    Case(
        implementation="naive",
        seqlen_q=8,
        mask={"name": "sliding-window", "window_size": 3, "causal": False},
        head_dim=16,
        head_dim_v=24,
        compile=True,
    ),
    Case(implementation="linear", seqlen_q=8, level="block", preset="tiny", architecture="encoder-only"),
    Case(implementation="naive", seqlen_q=8, level="model", preset="tiny", inputs="text"),
    Case(implementation="naive", seqlen_q=8, level="model", preset="tiny", mode="fwd_bwd", checkpoint=True),
    Case(implementation=f"{FILE}#one", seqlen_q=8, options={"n%": "a'b\\n"}),
]


def meta(measure: MeasureSettings | None = None, **changes: Any) -> dict[str, Any]:
    suite = {"name": HOSTILE, "description": "", "source": "gone.toml", "text": ""}
    plan = Plan(suite, (), measure or MeasureSettings(), None)
    return plan.to_meta() | {"isolate": "case", "memory_limits": {"cpu": 1 << 33}} | changes


def record(case: Case, status: str = "ok") -> Record:
    reason = None if status == "ok" else "for a test"
    return Record(case_id=case.case_id, case=case.to_dict(), status=status, reason=reason)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which holds somebody's file and no suite."""
    monkeypatch.chdir(tmp_path)
    Path(FILE).write_text(KERNEL, encoding="utf-8")
    return tmp_path


def run_in_shell(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a record's command as a shell does where `attnbench` is this one."""
    project = str(Path(__file__).parents[2])
    called = f'attnbench() {{ "{sys.executable}" -m attnbench "$@"; }}; {command} {" ".join(arguments)}'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([project, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(["sh", "-c", called], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.case_id)
def test_a_suite_of_one_case_holds_that_case(case, folder):
    settings = MeasureSettings(metrics=("latency", "memory"), seed=7, latency_budget_s=0.5)
    Path("suite.toml").write_text(suite_text(HOSTILE, case, settings), encoding="utf-8")
    suite = load_suite("suite.toml")
    assert suite.cases == (case,)
    assert [one.case_id for one in suite.cases] == [case.case_id]
    assert (suite.name, suite.measure) == (HOSTILE, settings)


@pytest.mark.parametrize("case", [CASES[1], CASES[-1]], ids=["lengths", "somebody's file"])
def test_a_shell_hands_the_case_on_as_it_is(case, folder):
    command = reproduce_command(meta(), record(case))
    assert "\n" not in command
    done = run_in_shell(command, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    [planned] = json.loads(done.stdout)
    assert planned.pop("case_id") == case.case_id
    assert Case.from_dict(planned) == case


def test_what_the_launch_was_told_is_in_it():
    on_gpu = Case(implementation="naive", seqlen_q=8, device="cuda")
    told = meta(device_index=1, isolate="implementation", memory_limits={"cpu": 5, "cuda": 1 << 34})
    command = reproduce_command(told, record(on_gpu, "oom"))
    assert command.endswith(
        "| attnbench run /dev/stdin --device cuda:1 --isolate implementation --memory-limit 17179869184"
    )
    assert reproduce_command(meta(), record(CASES[0])).endswith("| attnbench run /dev/stdin")


@pytest.mark.long
def test_the_command_in_a_record_measures_the_same_case_again(folder):
    """From a suite that is gone by then, with another implementation put in."""
    case, settings = CASES[0], MeasureSettings(metrics=("memory", "agreement"), seed=3)
    suite = Suite(name="small", description="", cases=(case,), measure=settings, source="x.toml", text="")

    class Measured:
        def prepare(self, cases) -> None:
            pass

        def submit(self, one: Case) -> Record:
            return record(one)

        def time_again(self, former: Record, number: int) -> Record:
            raise AssertionError("it has no latency")

    with RunWriter.create(folder / "run", Plan.of_suite(suite).to_meta()) as writer:
        run_cases([case], Measured(), writer, Observer())
    [first] = load_run("run").records
    done = run_in_shell(first.provenance.reproduce, "-o", "again")
    assert done.returncode == 0, done.stderr
    run = load_run("again")
    [second] = run.records
    assert (second.case_id, second.status) == (first.case_id, "ok")
    assert second.provenance.seed == 3
    assert second.memory is not None
    assert second.latency is None
    assert second.provenance.reproduce == first.provenance.reproduce
