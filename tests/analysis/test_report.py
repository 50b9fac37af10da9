import subprocess
import sys
from pathlib import Path
from typing import Any

from attnbench.analysis.provenance import MOST_FACTS, run_facts, run_labels
from attnbench.analysis.report import build_report
from tests.analysis.synthetic import make_record, make_run, quick_run


def test_a_report_holds_every_row_and_says_how_many_samples_it_leaves_out():
    run = quick_run()
    report = build_report([run])
    assert len(report.rows) == len(run.records)
    assert report.samples == 5 * 71
    assert report.title == "quick"
    assert report.constants["dtype"] == "float32"


def test_a_run_says_what_it_ran_on_and_how_to_run_it_again():
    facts = run_facts(
        "label", make_run([make_record(latency_ms=1.0)], command=["attnbench", "run", "my suite.toml"])
    )
    assert facts.hardware == "AMD EPYC, 2 cores"
    assert facts.software == "attnbench 0.1.0, torch 2.13.0+cpu, triton 3.9.0, python 3.11.7, Linux 6.18"
    assert facts.revision == "4e130e8c0ffe, modified"
    assert facts.command == "attnbench run 'my suite.toml'"
    assert dict(facts.facts)["environment.cpu.model"] == "AMD EPYC"
    assert "suite.text" not in dict(facts.facts)


def test_a_run_on_a_gpu_names_the_gpu():
    environment = {"cpu": {"model": "AMD EPYC", "logical_cores": 2}, "gpus": [{"name": "NVIDIA H200"}]}
    on_gpu = make_run([make_record(device="cuda")], environment=environment)
    assert run_facts("label", on_gpu).hardware == "NVIDIA H200"
    on_cpu = make_run([make_record(device="cpu")], environment=environment)
    assert run_facts("label", on_cpu).hardware == "AMD EPYC, 2 cores"


def test_a_foreign_or_empty_run_json_is_no_error():
    nonsense: dict[str, Any] = {
        "suite": 3,
        "environment": [],
        "versions": "x",
        "revision": "abc",
        "command": None,
    }
    facts = run_facts("label", make_run([], **nonsense))
    assert (facts.suite, facts.hardware, facts.software, facts.revision, facts.command) == (
        "3",
        "",
        "",
        "",
        "",
    )
    many = run_facts("label", make_run([], **{f"key{place}": "x" * 10_000 for place in range(1000)}))
    assert len(many.facts) == MOST_FACTS
    assert all(len(value) < 500 for _, value in many.facts)


def test_labels_of_runs_are_distinct():
    assert run_labels([Path("runs/a"), Path("runs/b")]) == ["a", "b"]
    assert run_labels([Path("/x/runs/a"), Path("/y/runs/a")]) == ["x/runs/a", "y/runs/a"]
    assert run_labels([Path("/x/a"), Path("/x/a")]) == ["a (1)", "a (2)"]


def test_planned_cases_without_a_record_are_counted():
    record = make_record()
    run = make_run([record], cases={record.case_id: record.case, "attention/other": {}})
    assert len(run_facts("label", run).missing) == 1


def test_analysis_loads_no_heavy_library():
    heavy = ("torch", "triton", "pandas", "matplotlib", "sympy")
    code = f"import sys, attnbench.analysis.report; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
