"""Launches of a case lie rounds apart, are joined in its record, and none is lost or hidden."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnbench.measure.launches import latency_of
from attnbench.measure.record import Provenance, Record
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.plan.suite import Suite
from attnbench.run.launch import Plan
from attnbench.run.rounds import Observer, RunInterruptedError, run_cases
from attnbench.run.runner import cases_left
from attnbench.run.store import RECORDS_FILE, Run, RunWriter, load_run

LAUNCHES = 5


def case(seqlen: int) -> Case:
    return Case(implementation="naive", seqlen_q=seqlen)


CASES = [case(length) for length in (1, 2, 3, 4)]


class Machine:
    """An executor on a machine that slows down by 1 ms a launch; `ends` tells launches that end otherwise.

    Length 2 is of an interpreted kernel: fine, and never timed.
    """

    def __init__(self, **ends: str) -> None:
        self.ends = ends
        self.launched: list[tuple[int, int]] = []
        self.source = "as it was"

    def prepare(self, cases: Iterable[Case]) -> None:
        self.prepared = [one.seqlen_k for one in cases]

    def submit(self, one: Case) -> Record:
        return self._launch(one, 1)

    def time_again(self, record: Record, number: int) -> Record:
        return self._launch(Case.from_dict(record.case), number)

    def _launch(self, one: Case, number: int) -> Record:
        status = self.ends.get(f"n{one.seqlen_k}_{number}", "ok")
        if status == "interrupt":
            raise KeyboardInterrupt
        self.launched.append((one.seqlen_k, number))
        record = Record(
            case_id=one.case_id,
            case=one.to_dict(),
            status=status,  # type: ignore[arg-type]
            reason=None if status == "ok" else "as told",
            provenance=Provenance(source_hash=self.source, work_s=0.25),
        )
        if status == "ok" and one.seqlen_k != 2:
            slower = float(len(self.launched))
            samples = [10 + slower, 11 + slower, 12 + slower]
            record.latency = latency_of([samples], timer="told", cache="warm", verdict=["valid"])
        return record


class Counting(Observer):
    """An observer that remembers rounds."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int, list[int]]] = []

    def round_started(self, number: int, last: int, cases: Sequence[Case]) -> None:
        self.rounds.append((number, last, [one.seqlen_k for one in cases]))


def start(folder: Path, launches: int = LAUNCHES) -> RunWriter:
    suite = Suite(
        name="small",
        description="for a test",
        cases=tuple(CASES),
        measure=MeasureSettings(launches=launches),
        source="small.toml",
        text="name = 'small'",
    )
    return RunWriter.create(folder, {**Plan.of_suite(suite).to_meta(), "status": "running"})


def run(folder: Path, machine: Machine, launches: int = LAUNCHES) -> Run:
    with start(folder, launches) as writer:
        run_cases(CASES, machine, writer, Observer(), launches=launches)
    return load_run(folder)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (folder / RECORDS_FILE).read_bytes().splitlines()]


def test_rounds_go_there_and_back_again(tmp_path):
    machine, counting = Machine(), Counting()
    with start(tmp_path) as writer:
        run_cases(CASES, machine, writer, counting, launches=3)
    assert machine.launched == [
        (1, 1), (2, 1), (3, 1), (4, 1),
        (4, 2), (3, 2), (1, 2),
        (1, 3), (3, 3), (4, 3),
    ]  # fmt: skip
    assert counting.rounds == [(1, 3, [1, 2, 3, 4]), (2, 3, [4, 3, 1]), (3, 3, [1, 3, 4])]


def test_each_launch_replaces_the_record_with_one_that_holds_it_too(tmp_path):
    records = {record.case["seqlen_k"]: record for record in run(tmp_path, Machine()).records}
    assert len(lines(tmp_path)) == 3 * LAUNCHES + 1, "one line a launch; length 2 has but the first"
    for length in (1, 3, 4):
        latency = records[length].latency
        assert latency is not None
        assert latency.launches == LAUNCHES
        assert latency.samples_per_launch == [3] * LAUNCHES
        assert latency.samples_ms is not None
        assert len(latency.samples_ms) == 3 * LAUNCHES
        assert latency.launch_medians_ms == sorted(latency.launch_medians_ms or ()), "in order: ever slower"
        assert latency.ci95_low_ms is not None
        assert latency.median_ms is not None
        assert latency.ci95_low_ms < latency.median_ms
        assert records[length].provenance.work_s == 0.25 * LAUNCHES
    assert records[2].latency is None


def test_with_one_launch_there_are_no_rounds(tmp_path):
    machine = Machine()
    run(tmp_path, machine, launches=1)
    assert machine.launched == [(length, 1) for length in (1, 2, 3, 4)]


@pytest.mark.parametrize("stop", ["n3_1", "n4_2", "n3_3", "n1_5"])
def test_an_interruption_in_any_round_keeps_the_launches_and_resuming_adds_the_rest(tmp_path, stop):
    first = Machine(**{stop: "interrupt"})
    with start(tmp_path) as writer, pytest.raises(RunInterruptedError):
        run_cases(CASES, first, writer, Observer(), launches=LAUNCHES)
    interrupted = load_run(tmp_path)
    kept = sum(len(r.latency.launch_medians_ms or ()) for r in interrupted.records if r.latency is not None)
    assert kept == sum(length != 2 for length, _ in first.launched)
    left = sum(count for _, count in cases_left(None, tmp_path))
    second = Machine()
    with RunWriter.resume(tmp_path) as writer:
        run_cases(CASES, second, writer, Observer(), launches=LAUNCHES)
    launched = first.launched + second.launched
    assert sorted(launched) == sorted({*launched}), "no launch is made twice"
    assert len(second.launched) <= left
    whole = load_run(tmp_path)
    assert [r.latency.launches for r in whole.records if r.latency is not None] == [LAUNCHES] * 3
    assert whole.meta["status"] == "complete"
    assert cases_left(None, tmp_path) == []


def test_a_parent_killed_while_it_wrote_loses_that_launch_alone(tmp_path):
    with start(tmp_path) as writer, pytest.raises(RunInterruptedError):
        run_cases(CASES, Machine(n1_3="interrupt"), writer, Observer(), launches=LAUNCHES)
    file = tmp_path / RECORDS_FILE
    file.write_bytes(file.read_bytes()[:-40])
    second = Machine()
    with RunWriter.resume(tmp_path) as writer:
        run_cases(CASES, second, writer, Observer(), launches=LAUNCHES)
    assert second.launched[0] == (1, 2), "whose line was torn"
    found = load_run(tmp_path)
    assert found.problems == []
    assert [r.latency.launches for r in found.records if r.latency is not None] == [LAUNCHES] * 3


@pytest.mark.parametrize("status", ["crashed", "timeout", "error", "incorrect", "oom"])
def test_a_launch_that_goes_wrong_is_the_status_of_its_case_which_keeps_all_but_its_speed(tmp_path, status):
    class Knowing(Machine):
        def submit(self, one: Case) -> Record:
            record = super().submit(one)
            record.theory = {"flops": 7}
            return record

    machine = Knowing(n3_3=status)
    records = {record.case["seqlen_k"]: record for record in run(tmp_path, machine).records}
    assert (records[3].status, records[3].reason) == (status, "in launch 3: as told")
    assert records[3].latency is None
    assert records[3].theory == {"flops": 7}
    assert (3, 4) not in machine.launched
    assert [records[length].status for length in (1, 2, 4)] == ["ok"] * 3
    kept = [
        line["latency"] for line in lines(tmp_path) if line["case"]["seqlen_k"] == 3 and "latency" in line
    ]
    assert [latency["launches"] for latency in kept] == [1, 2], "what it took so far stays in the file"

    again = Machine()
    with RunWriter.resume(tmp_path) as writer:
        run_cases(CASES, again, writer, Observer(), launches=LAUNCHES)
    retried = status in ("crashed", "timeout", "error")
    assert again.launched == ([(3, number) for number in range(1, LAUNCHES + 1)] if retried else [])


def test_launches_of_two_sources_are_not_mixed(tmp_path):
    machine = Machine(n1_2="interrupt")
    with start(tmp_path) as writer, pytest.raises(RunInterruptedError):
        run_cases(CASES, machine, writer, Observer(), launches=2)
    edited = Machine()
    edited.source = "edited"
    with RunWriter.resume(tmp_path) as writer:
        run_cases(CASES, edited, writer, Observer(), launches=2)
    found = {record.case["seqlen_k"]: record for record in load_run(tmp_path).records}
    assert found[1].status == "error"
    assert "source" in (found[1].reason or "")


def test_a_run_says_which_part_of_its_time_was_work(tmp_path):
    meta = run(tmp_path, Machine()).meta
    assert meta["work_s"] == 0.25 * (3 * LAUNCHES + 1)
    assert 0 <= meta["wall_s"] < 60
