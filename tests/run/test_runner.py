"""A suite becomes a run folder; interrupted, it can be continued."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.contract.errors import UsageError
from attnbench.measure.record import Record
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.plan.suite import Suite
from attnbench.run.launch import Plan, differences
from attnbench.run.rounds import Observer, RunInterruptedError, run_cases
from attnbench.run.runner import cases_left, ordered, run_suite
from attnbench.run.store import RunWriter, load_run


def case(implementation: str = "naive", seqlen: int = 8, **changes) -> Case:
    return Case(implementation=implementation, seqlen_q=seqlen, **changes)


def suite(*cases: Case, **changes) -> Suite:
    values: dict[str, Any] = {
        "name": "small",
        "description": "for a test",
        "measure": MeasureSettings(),
        "source": "small.toml",
        "text": "name = 'small'",
    }
    return Suite(cases=cases, **(values | changes))


class Scripted:
    """An executor whose records are told in advance; an interruption is one of the things it can do."""

    def __init__(self, **statuses: str) -> None:
        self.statuses = statuses
        self.submitted: list[str] = []

    def prepare(self, cases) -> None:
        pass

    def time_again(self, record: Record, number: int) -> Record:
        raise AssertionError("none of these cases has a latency")

    def submit(self, one: Case) -> Record:
        status = self.statuses.get(f"n{one.seqlen_k}", "ok")
        if status == "interrupt":
            raise KeyboardInterrupt
        self.submitted.append(one.case_id)
        reason = None if status == "ok" else "as told"
        return Record(case_id=one.case_id, case=one.to_dict(), status=status, reason=reason)  # type: ignore[arg-type]


class Watching(Observer):
    """An observer that remembers."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def started(self, path: Path, todo: Sequence[Case], done: int) -> None:
        self.seen.append(([one.seqlen_k for one in todo], done))

    def note(self, text: str) -> None:
        self.seen.append(text)

    def case_started(self, one: Case) -> None:
        self.seen.append(one.seqlen_k)

    def case_finished(self, record: Record) -> None:
        self.seen.append(record.status)


def start(folder: Path, *cases: Case) -> RunWriter:
    return RunWriter.create(folder, {**Plan.of_suite(suite(*cases)).to_meta(), "status": "running"})


def test_an_interruption_keeps_what_was_measured_and_resuming_completes_it(tmp_path):
    cases = [case(seqlen=length) for length in (1, 2, 3, 4)]
    with start(tmp_path, *cases) as writer, pytest.raises(RunInterruptedError, match=f"--resume {tmp_path}"):
        run_cases(cases, Scripted(n3="interrupt"), writer, Watching())
    run = load_run(tmp_path)
    assert [record.status for record in run.records] == ["ok", "ok"]
    assert run.meta["status"] == "interrupted"
    assert run.missing == [one.case_id for one in cases[2:]]

    assert cases_left(None, tmp_path) == [(one, MeasureSettings().launches) for one in cases[2:]]
    second, watching = Scripted(), Watching()
    with RunWriter.resume(tmp_path) as writer:
        run_cases(cases, second, writer, watching)
    assert second.submitted == [one.case_id for one in cases[2:]]
    assert watching.seen == [([3, 4], 2), 3, "ok", 4, "ok"]
    run = load_run(tmp_path)
    assert run.meta["status"] == "complete"
    assert run.missing == []


def test_an_unknown_isolation_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"unknown isolation 'cas'.*did you mean 'case'"):
        run_suite(suite(case()), output=tmp_path / "run", isolate="cas")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_resuming_tries_again_what_may_have_been_the_machine(tmp_path):
    statuses = dict(
        enumerate(["ok", "unsupported", "incorrect", "oom", "timeout", "crashed", "error"], start=1)
    )
    cases = [case(seqlen=length) for length in statuses]
    told = {f"n{length}": status for length, status in statuses.items()}
    with start(tmp_path, *cases) as writer:
        run_cases(cases, Scripted(**told), writer, Watching())
    assert [one.seqlen_k for one, _ in cases_left(None, tmp_path)] == [5, 6, 7]
    with RunWriter.resume(tmp_path) as writer:
        run_cases(cases, Scripted(), writer, Watching())
    final = [record.status for record in load_run(tmp_path).records]
    assert final == ["ok", "unsupported", "incorrect", "oom", "ok", "ok", "ok"]


def test_equal_problems_stand_together_and_small_ones_come_first():
    cases = [
        case(name, length, mode=mode, **extra)
        for name in ("naive", "sdpa")
        for mode in ("fwd", "fwd_bwd")
        for extra in ({}, {"preset": "small-decoder", "level": "model"})
        for length in (512, 256)
    ]
    order = ordered(cases)
    assert sorted(order, key=repr) == sorted(cases, key=repr)
    for first, second in zip(order[::2], order[1::2], strict=True):
        assert (first.implementation, second.implementation) == ("naive", "sdpa")
        assert first.problem() == second.problem()
    assert [one.level for one in order] == ["attention"] * 8 + ["model"] * 8
    assert [one.seqlen_k for one in order[:8]] == [256] * 4 + [512] * 4


def test_a_process_per_implementation_wants_its_cases_together():
    cases = [case(name, length) for length in (1, 2) for name in ("sdpa", "naive")]
    order = [one.implementation for one in ordered(cases, "implementation")]
    assert order == ["naive", "naive", "sdpa", "sdpa"]


@pytest.mark.parametrize(
    "other",
    [
        suite(case(), case(seqlen=9)),
        suite(case(), text="name = 'other'"),
        suite(case(), measure=MeasureSettings(seed=1)),
    ],
)
def test_another_suite_cannot_continue_a_run(tmp_path, other):
    start(tmp_path, case()).close()
    assert cases_left(suite(case()), tmp_path) == [(case(), MeasureSettings().launches)]
    with pytest.raises(UsageError, match="another suite, other cases or other settings"):
        run_suite(other, resume=tmp_path)


def test_a_plan_survives_run_json(tmp_path):
    odd = case(
        mask={"name": "sliding-window", "window_size": 3, "causal": True},
        batch=2,
        key_lengths=(3, 8),
        scale=0.5,
    )
    plan = Plan.of_suite(replace(suite(odd), device_index=1))
    RunWriter.create(tmp_path, plan.to_meta()).close()
    assert Plan.of_run(load_run(tmp_path)) == plan


@pytest.mark.parametrize("missing", ["suite", "measure"])
def test_a_run_json_without_a_plan_cannot_be_continued(tmp_path, missing):
    meta = Plan.of_suite(suite(case())).to_meta()
    del meta[missing]
    RunWriter.create(tmp_path, meta).close()
    with pytest.raises(UsageError, match=f"can't be continued.*{missing}"):
        run_suite(resume=tmp_path)


def test_nothing_to_run_is_a_usage_error():
    with pytest.raises(UsageError, match="nothing to run"):
        run_suite()


def test_a_case_for_a_gpu_that_is_not_there_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match="no device 'cuda:0'"):
        run_suite(suite(case(device="cuda")), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_hardware_and_versions_are_named():
    before = {"versions": {"torch": "2.13.0"}, "environment": {"cpu": {"model": "A"}, "gpus": []}}
    now = {"versions": {"torch": "2.12.0"}, "environment": {"cpu": {"model": "A"}, "gpus": [{"name": "G"}]}}
    assert differences(before, before) == []
    assert differences(before, now) == [
        "version of torch: 2.13.0 before, 2.12.0 now",
        "GPUs: [] before, ['G'] now",
    ]
