"""The process that is profiled: it makes the call of a spec, and says in its answer what went wrong."""

import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from attnbench.measure.dram import child, cupti_pm, ncu
from attnbench.measure.dram.backend import BackendError
from attnbench.measure.dram.job import case_job, job_from
from attnbench.measure.dram.process import answer_of, check, child_command
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from tests.measure.dram.fakes import SAMPLES, put_on_path

CASE = Case(implementation="naive", seqlen_q=16, mode="bwd", dtype="float32")


def spec() -> dict[str, object]:
    return case_job(build_workload(CASE, seed=7)).spec


def serve(answer: Path, given: dict[str, object], collector: str) -> int:
    return child.main(child_command(given, collector, answer)[-1])


def test_the_spec_of_a_case_makes_the_same_call():
    workload = build_workload(CASE, seed=7)
    job = job_from(spec())
    assert job.spec == case_job(workload).spec
    assert job.resident_bytes == sum(x.nbytes for x in workload.resident())
    job.warm_up()
    with job.environment(), workload.environment():
        job.prepare()
        workload.prepare()
        ours, theirs = job.call(), workload.call()
    assert all(ours.gradients[name].equal(theirs.gradients[name]) for name in ("q", "k", "v"))


@pytest.mark.parametrize("collector", ["ncu", "rocprofv3"])
def test_a_call_is_made_and_nothing_else_is_said(tmp_path, collector):
    assert serve(tmp_path / "answer", spec(), collector) == 0
    assert answer_of(tmp_path / "answer") == {"bytes": {}}


def test_what_the_child_could_not_do_is_in_its_answer(tmp_path):
    broken = {"case": {**CASE.to_dict(), "implementation": "none"}, "seed": 7}
    assert serve(tmp_path / "answer", broken, "ncu") == 1
    assert "unknown implementation" in answer_of(tmp_path / "answer")["error"]


def test_a_missing_permission_is_told_apart(tmp_path, monkeypatch):
    def refuse(job):
        raise cupti_pm.Forbidden("no")

    monkeypatch.setitem(vars(child)["COLLECTORS"], "cupti-pm", refuse)
    assert serve(tmp_path / "answer", spec(), "cupti-pm") == 1
    assert answer_of(tmp_path / "answer") == {"kind": "forbidden", "error": "no"}


@pytest.mark.parametrize("lasting", [True, False])
def test_what_would_fail_again_is_told_apart(tmp_path, monkeypatch, lasting):
    def fail(job):
        raise BackendError("no DRAM counter can be sampled here", lasting=lasting)

    monkeypatch.setitem(vars(child)["COLLECTORS"], "cupti-pm", fail)
    assert serve(tmp_path / "answer", spec(), "cupti-pm") == 1
    with pytest.raises(BackendError, match=r"failed: no DRAM counter can be sampled here$") as error:
        check("cupti-pm", "", answer_of(tmp_path / "answer"))
    assert error.value.lasting is lasting


def test_without_the_library_sampling_fails_in_words(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupti", ModuleType("cupti"))
    assert serve(tmp_path / "answer", spec(), "cupti-pm") == 1
    assert "cupti" in answer_of(tmp_path / "answer")["error"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_an_answer_that_is_torn_is_no_answer(tmp_path, text):
    (tmp_path / "answer").write_text(text, encoding="utf-8")
    assert answer_of(tmp_path / "answer") == {}


@pytest.mark.long
def test_the_real_child_runs_under_a_profiler(tmp_path, monkeypatch):
    """The profiler is made up, the process below it, its call and its answer are not."""
    kept = tmp_path / "kept"
    script = (
        "import shutil\n"
        "command = args[args.index('--log-file') + 2:]\n"
        "done = subprocess.run(command)\n"
        f"shutil.copy({str(SAMPLES / 'ncu-elementwise.csv')!r}, log)\n"
        f"shutil.copy(os.path.join(os.path.dirname(log), 'answer.json'), {str(kept)!r})\n"
        "sys.exit(done.returncode)\n"
    )
    put_on_path(tmp_path, "ncu", script, monkeypatch)
    job = case_job(build_workload(CASE, seed=7))
    assert ncu.measure(job, 120).read == 58_732_000
    assert msgspec.json.decode(kept.read_bytes()) == {"bytes": {}}
