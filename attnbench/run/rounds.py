"""A run in rounds: every case measured once, then timed again and again in new processes. In: cases and an
executor. Out: records in the run's folder, each written as soon as it is known.

The launches of one case lie a round apart, so that they meet the machine in different moods. Every other
round goes backwards: a drift then falls on all cases alike, and neighbours stay neighbours.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from attnbench.measure.launches import join_launch
from attnbench.measure.record import Provenance, Record
from attnbench.plan.case import Case
from attnbench.run.ceilings import record_ceilings
from attnbench.run.executor import Executor
from attnbench.run.launch import reproduce_command, utc_now
from attnbench.run.store import Run, RunWriter, StorageError, load_run

RETRIED = ("timeout", "crashed", "error")
"""Statuses that a resumed run tries again: they may have been the machine's doing. The others are results."""


class Observer:
    """Is told how a run goes, between launches and never while one is measured; this one says nothing."""

    def started(self, path: Path, todo: Sequence[Case], done: int) -> None:
        """The folder is there; `todo` is measured first, in this order; `done` cases have a result."""

    def note(self, text: str) -> None:
        """Something that a person should know."""

    def round_started(self, number: int, last: int, cases: Sequence[Case]) -> None:
        """These cases have their launch `number` now, of `last` ones."""

    def case_started(self, case: Case) -> None:
        """A launch of a case begins."""

    def case_finished(self, record: Record) -> None:
        """Its record is written: that of all launches so far."""


class RunInterruptedError(KeyboardInterrupt):
    """Interrupted by a person; what was measured is in `path`."""

    def __init__(self, path: Path) -> None:
        """Keep where the run lies."""
        super().__init__(f"interrupted; continue with: attnbench run --resume {shlex.quote(str(path))}")
        self.path = path


def run_cases(
    cases: Sequence[Case],
    executor: Executor,
    writer: RunWriter,
    observer: Observer,
    *,
    launches: int = 1,
    again: Collection[str] = (),
) -> None:
    """Measure the cases that have no result yet, then bring all that have a latency to so many launches.

    Those whose ids are in ``again`` are measured whatever they have. `run.json` gets `wall_s`, the seconds
    since the executor was ready, and `work_s`, those in which something was timed, counted or checked.

    Raises:
        RunInterruptedError: interrupted; `run.json` says so.
        StorageError: a record could not be written.
    """
    before = load_run(writer.path)
    done = finished(before) - set(again)
    records = {record.case_id: record for record in before.records if record.case_id in done}
    todo = [case for case in cases if case.case_id not in done]
    behind = [case for case in cases if launches_missing(records.get(case.case_id), launches)]
    observer.started(writer.path, todo, len(done))
    status, began, work_s = "failed", None, 0.0
    try:
        executor.prepare(behind)
        record_ceilings(executor, behind, writer)
        began = time.monotonic()
        for number in range(1, launches + 1):
            of_round = [case for case in cases if _takes_part(records.get(case.case_id), number)]
            if not of_round:
                continue
            if number % 2 == 0:
                of_round.reverse()
            observer.round_started(number, launches, of_round)
            for case in of_round:
                observer.case_started(case)
                former = records.get(case.case_id)
                record = (
                    _measured(case, executor, writer) if former is None else _timed(former, executor, number)
                )
                work_s += _work_s(record) - _work_s(former)
                writer.append(record)
                records[case.case_id] = record
                observer.case_finished(record)
        status = "complete"
    except KeyboardInterrupt:
        status = "interrupted"
        raise RunInterruptedError(writer.path) from None
    finally:
        _finish(writer, status, 0.0 if began is None else time.monotonic() - began, work_s)


def finished(run: Run) -> set[str]:
    """Ids of the cases that have a result, whatever launches they still miss."""
    return {record.case_id for record in run.records if record.status not in RETRIED}


def launches_missing(record: Record | None, launches: int) -> int:
    """How many launches a case misses: all without a result, none with one that has no latency."""
    if record is None or record.status in RETRIED:
        return launches
    if record.latency is None or record.latency.median_ms is None:
        return 0
    return max(0, launches - (record.latency.launches or 1))


def _takes_part(record: Record | None, number: int) -> bool:
    if record is None:
        return number == 1
    return number > 1 and record.status == "ok" and launches_missing(record, number) > 0


def _measured(case: Case, executor: Executor, writer: RunWriter) -> Record:
    record = executor.submit(case)
    record.provenance = record.provenance or Provenance()
    record.provenance.reproduce = reproduce_command(writer.meta, record)
    return record


def _timed(former: Record, executor: Executor, number: int) -> Record:
    return join_launch(former, executor.time_again(former, number), number)


def _work_s(record: Record | None) -> float:
    return 0.0 if record is None or record.provenance is None else record.provenance.work_s or 0.0


def _finish(writer: RunWriter, status: str, wall_s: float, work_s: float) -> None:
    """Say in `run.json` how it ended; seconds are added to those of the sessions before."""
    spent = {"wall_s": wall_s, "work_s": work_s}
    sums = {name: round(writer.meta.get(name, 0.0) + value, 3) for name, value in spent.items()}
    try:
        writer.update(status=status, finished_utc=utc_now(), **sums)
    except StorageError:
        if status == "complete":
            raise
