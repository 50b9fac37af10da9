"""When a case's DRAM bytes are counted: last, on a GPU, of right calls, and before its time ends."""

import time
from typing import Any, get_args

import pytest
import torch

from attnbench.contract.cost import compulsory_read_bytes
from attnbench.measure import pipeline
from attnbench.measure.dram import section
from attnbench.measure.dram.backend import DramBytes
from attnbench.measure.dram.choose import BACKENDS, Choice
from attnbench.measure.pipeline import measure_case
from attnbench.measure.record import Record, Traffic
from attnbench.measure.workload import Workload, build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import DramBackend, MeasureSettings

CASE = Case(implementation="naive", seqlen_q=16)
TRAFFIC = MeasureSettings(metrics=("traffic", "dram"), case_timeout_s=100)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Record, float]]:
    """What the pipeline would have counted, and by when."""
    seen: list[tuple[Record, float]] = []
    monkeypatch.setattr(
        pipeline, "fill_dram", lambda workload, record, until, scratch, only: seen.append((record, until))
    )
    return seen


def test_on_a_cpu_nothing_is_counted_and_the_record_says_why(monkeypatch):
    monkeypatch.setattr(section, "choose", lambda *args, **more: pytest.fail("a backend was looked for"))
    record = measure_case(CASE, TRAFFIC)
    assert record.traffic.dram_bytes is None
    assert record.traffic.dram_backend is None
    assert record.unavailable["traffic.dram_bytes"] == (
        "counted by the hardware of a GPU alone; this case ran on the CPU"
    )


def test_nothing_is_counted_that_no_suite_asked_for(asked):
    record = measure_case(CASE, MeasureSettings(metrics=("traffic",)))
    assert record.status == "ok"
    assert asked == []
    assert "dram" not in MeasureSettings().metrics


def test_profilers_end_before_the_case_has_to(asked):
    began = time.monotonic()
    record = measure_case(CASE, TRAFFIC)
    ((seen, until),) = asked
    assert seen is record
    assert began + 80 <= until <= time.monotonic() + 80


def test_a_wrong_result_is_not_counted(asked, monkeypatch):
    monkeypatch.setattr(pipeline, "fill_timed", lambda *args: "it drifted")
    assert measure_case(CASE, TRAFFIC).status == "incorrect"
    assert asked == []


class OnGpu:
    """A workload that says it is on a GPU."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.device = workload, torch.device("cuda")

    def __getattr__(self, name):
        return getattr(self.workload, name)


@pytest.mark.parametrize(
    ("changes", "judged"),
    [
        ({}, True),
        ({"cache": "warm"}, False),
        ({"level": "block", "preset": "tiny"}, False),
        ({"mode": "decode", "seqlen_q": 1, "seqlen_k": 512}, True),
        # Of 512 keys and values a state of 64 × 64 holds what is needed: fewer bytes are no mistake.
        ({"implementation": "linear", "mode": "decode", "seqlen_q": 1, "seqlen_k": 512}, False),
    ],
)
def test_reads_are_judged_where_the_least_of_them_is_known(monkeypatch, tmp_path, changes, judged):
    case = Case(**{"implementation": "naive", "seqlen_q": 16, **changes})
    workload: Any = OnGpu(build_workload(case))
    least = compulsory_read_bytes(workload.problem)
    found = DramBytes(total=least, read=least // 2, write=least - least // 2)
    where: list[object] = []

    def choose(job, until, *, notes, backends):
        assert backends == BACKENDS
        where.append(notes)
        assert job.spec == {"case": case.to_dict(), "seed": 0}
        assert job.cold is (case.cache == "cold")
        return Choice(found, "ncu")

    monkeypatch.setattr(section, "choose", choose)
    record = Record(case_id="c", case={}, status="ok", traffic=Traffic())
    section.fill_dram(workload, record, time.monotonic(), tmp_path)
    assert record.traffic.dram_bytes == least
    assert record.traffic.dram_verdict == ("implausible" if judged else None)
    assert where == [tmp_path / "dram"]


def test_the_one_backend_that_a_suite_names_is_tried_alone(monkeypatch):
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    names = [backend.NAME for backend in BACKENDS]
    assert sorted(get_args(DramBackend)) == sorted(names)
    workload: Any = OnGpu(build_workload(CASE))
    for name in names:
        record = Record(case_id="c", case={}, status="ok")
        section.fill_dram(workload, record, time.monotonic() + 100, None, name)
        assert record.traffic.dram_bytes is None
        reason = record.unavailable["traffic.dram_bytes"]
        assert [other for other in names if f"{other}: " in reason] == [name]
