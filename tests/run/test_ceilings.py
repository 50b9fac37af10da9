"""Ceilings of a run: measured once, in a worker, written into `run.json`, kept when it is resumed."""

from pathlib import Path

import pytest

from attnbench.measure.record import Record
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.run.ceilings import record_ceilings
from attnbench.run.executor import ExecutorSettings, LocalExecutor
from attnbench.run.rounds import Observer, run_cases
from attnbench.run.store import RunWriter, load_run

CASES = [Case(implementation="naive", seqlen_q=8, dtype=dtype) for dtype in ("float32", "bfloat16")]
MACHINE = {"versions": {"torch": "2.13"}, "environment": {"cpu": {"model": "a"}, "gpus": []}}


class Offering:
    """An executor that measures ceilings: as often as it was asked, so fast are they."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []

    def prepare(self, cases) -> None:
        pass

    def measure_ceilings(self, dtypes, known):
        self.asked.append(dtypes)
        measured = {kind: {"name": "a", "exp2_per_s": float(len(self.asked))} for kind in dtypes}
        return {**measured, **known}

    def submit(self, case: Case) -> Record:
        return Record(case_id=case.case_id, case=case.to_dict(), status="ok")

    def time_again(self, record: Record, number: int) -> Record:
        raise AssertionError("it has no latency")


def start(folder: Path, metrics=("latency",), **launch) -> RunWriter:
    cases = {case.case_id: case.to_dict() for case in CASES}
    circumstances = {**MACHINE, **launch}
    meta = {"suite": {"name": "a", "source": "a.toml"}, "cases": cases, "measure": {"metrics": list(metrics)}}
    return RunWriter.create(folder, {**meta, **circumstances, "ceilings": {}, "launches": [circumstances]})


def resume(folder: Path, executor, **launch):
    with RunWriter.resume(folder) as writer:
        writer.update(launches=[*writer.meta["launches"], {**MACHINE, **launch}])
        record_ceilings(executor, CASES, writer)
    return load_run(folder).meta["ceilings"]


def test_they_are_measured_before_the_first_case_for_the_types_of_all(tmp_path):
    executor = Offering()
    with start(tmp_path) as writer:
        run_cases(CASES, executor, writer, Observer())
    run = load_run(tmp_path)
    assert executor.asked == [{"cpu": ["bfloat16", "float32"]}]
    assert run.meta["ceilings"] == {"cpu": {"name": "a", "exp2_per_s": 1.0}}
    assert len(run.records) == 2


def test_a_resumed_run_keeps_its_own(tmp_path):
    executor = Offering()
    with start(tmp_path) as writer:
        record_ceilings(executor, CASES, writer)
    assert resume(tmp_path, executor)["cpu"]["exp2_per_s"] == 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"versions": {"torch": "2.14"}},
        {"environment": {"cpu": {"model": "b"}, "gpus": []}},
    ],
)
def test_on_another_machine_they_are_measured_anew(tmp_path, change):
    executor = Offering()
    with start(tmp_path) as writer:
        record_ceilings(executor, CASES, writer)
    assert resume(tmp_path, executor, **change)["cpu"]["exp2_per_s"] == 2.0


def test_what_failed_is_tried_again(tmp_path):
    with start(tmp_path) as writer:
        writer.update(ceilings={"cpu": {"unavailable": {"ceilings": "TimeoutError"}}})
    assert resume(tmp_path, Offering())["cpu"]["exp2_per_s"] == 1.0


@pytest.mark.parametrize(("metrics", "cases"), [(["flops"], CASES), (["latency"], [])])
def test_where_nothing_is_timed_there_are_none(tmp_path, metrics, cases):
    executor = Offering()
    with start(tmp_path, metrics) as writer:
        record_ceilings(executor, cases, writer)
    assert executor.asked == []
    assert load_run(tmp_path).meta["ceilings"] == {}


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    settings = ExecutorSettings(
        measure=MeasureSettings(latency_budget_s=0.01),
        memory_limits={"cpu": 128 << 20},
        log=tmp_path_factory.mktemp("executor") / "log",
        preload=("torch",),
    )
    with LocalExecutor(settings) as one:
        yield one


def test_a_worker_measures_and_the_cases_to_come_know(executor):
    """Its memory is too little for a buffer, which is said; everything else is there."""
    found = executor.measure_ceilings({"cpu": ["float32"]}, {})
    assert found["cpu"]["matmul_flops_per_s"].keys() == {"float32"}
    assert found["cpu"]["threads"] == 1
    assert "bytes may be used" in found["cpu"]["unavailable"]["copy_bytes_per_s"]
    assert executor.settings.job(CASES[0]).context["ceilings"] == found["cpu"]
    assert executor.settings.job(replace_device(CASES[0])).context["ceilings"] is None


def replace_device(case: Case) -> Case:
    return Case(implementation=case.implementation, seqlen_q=8, device="cuda")


def test_a_worker_that_dies_or_fails_costs_the_ceilings_and_nothing_else(executor, monkeypatch):
    monkeypatch.setattr("attnbench.run.ceilings.TASK", "os:abort")
    found = executor.measure_ceilings({"cpu": ["float32"]}, {})
    assert "ceilings" in found["cpu"]["unavailable"]
    assert "error" in found["cpu"]["unavailable"]["ceilings"].lower()
    monkeypatch.setattr("attnbench.run.ceilings.TASK", "ctypes:string_at")
    assert executor.measure_ceilings({"cpu": ["float32"]}, {})["cpu"]["unavailable"]["ceilings"]
