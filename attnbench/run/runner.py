"""A suite becomes a run: cases in a sensible order, each record written at once. In: a suite. Out: `Run`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from attnbench.contract.errors import UsageError, nearest
from attnbench.device.hardware import default_threads
from attnbench.measure.record import Provenance, Record
from attnbench.plan.case import LEVELS, Case
from attnbench.plan.suite import Suite, load_suite
from attnbench.run.ceilings import record_ceilings
from attnbench.run.executor import Executor, ExecutorSettings, Isolation, make_executor
from attnbench.run.launch import Plan, circumstances, differences, memory_limits, reproduce_command, utc_now
from attnbench.run.scratch import scratch_folder
from attnbench.run.store import Run, RunWriter, StorageError, load_run, new_folder
from attnbench.run.turns import TakingTurns

RETRIED = ("timeout", "crashed", "error")
"""Statuses that a resumed run tries again: they may have been the machine's doing. The others are results."""
_LOG = "worker.log"


class Observer:
    """Is told how a run goes, between cases and never while one is measured; this one says nothing."""

    def started(self, path: Path, todo: Sequence[Case], done: int) -> None:
        """The folder is there; `todo` comes, in this order; `done` cases have a result already."""

    def note(self, text: str) -> None:
        """Something that a person should know."""

    def case_started(self, case: Case) -> None:
        """A case begins."""

    def case_finished(self, record: Record) -> None:
        """Its record is written."""


class RunInterruptedError(KeyboardInterrupt):
    """Interrupted by a person; what was measured is in `path`."""

    def __init__(self, path: Path) -> None:
        """Keep where the run lies."""
        super().__init__(f"interrupted; continue with: attnbench run --resume {shlex.quote(str(path))}")
        self.path = path


def run_suite(
    suite: Suite | str | Path | None = None,
    *,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    implementations: Iterable[str] = (),
    seqlens: Iterable[int | str] = (),
    device: str | None = None,
    isolate: Isolation = "case",
    memory_limit_bytes: int | None = None,
    observer: Observer | None = None,
    command: Sequence[str] | None = None,
) -> Run:
    """Measure every case of a suite and return the run.

    Args:
        suite: a `Suite`, the name of one, or a TOML file; with `resume` it may be left out.
        output: the run's folder; default `runs/<suite>-<utc time>`.
        resume: folder of a run to continue. Cases that are `ok`, `unsupported`, `incorrect` or `oom` are
            kept while the source of their implementation is the same; `timeout`, `crashed` and `error` are
            tried again.
        implementations: as in `load_suite`, like the next two; a `Suite` has its cases already.
        seqlens: replaces the length axis.
        device: `cpu`, `cuda` or `cuda:i`.
        isolate: `case`: a process for each; `implementation`: one for all its cases; `none`: this process.
        memory_limit_bytes: what a case may use; default: four fifths of the memory available, or nine tenths
            of what is free on the GPU.
        observer: is told how it goes.
        command: the command line, for the record.

    Raises:
        UsageError: a mistake in what was asked for, before anything is run.
        RunInterruptedError: interrupted; what was measured is kept.
        StorageError: the disk is full; what was written is kept.
    """
    if isolate not in get_args(Isolation):
        known = get_args(Isolation)
        raise UsageError(
            f"unknown isolation {isolate!r}{nearest(str(isolate), known)}; there are {', '.join(known)}"
        )
    if isinstance(suite, str | Path):
        suite = load_suite(suite, implementations=implementations, seqlens=seqlens, device=device)
    before = None if resume is None else load_run(resume)
    plan = _plan(suite, before)
    observer = observer or Observer()
    gpu = plan.gpu()
    threads, _ = default_threads()
    limits = memory_limits(memory_limit_bytes, gpu)
    launch = {**circumstances(command), "isolate": isolate, "threads": threads, "memory_limits": limits}
    writer = _create(plan, launch, output) if before is None else _resume(before, launch, observer)
    with writer, scratch_folder() as scratch:
        settings = ExecutorSettings(
            measure=plan.measure,
            threads=threads,
            memory_limits=limits,
            scratch=scratch,
            log=writer.path.absolute() / _LOG,
            visible_gpu=None if gpu is None else gpu.uuid,
        )
        with make_executor(settings, isolate) as executor:
            try:
                edited: Collection[str] = ()
                if before is not None and (kept := _sources_kept(before)):
                    present = executor.sources(
                        {before.planned[case_id]["implementation"] for case_id in kept}
                    )
                    edited = _edited(before, kept, present, observer)
                turns = TakingTurns(executor, settings, observer.note)
                run_cases(ordered(plan.cases, isolate), turns, writer, observer, again=edited)
            finally:
                if settings.log.is_file() and not settings.log.stat().st_size:
                    settings.log.unlink()
    return load_run(writer.path)


def run_cases(
    cases: Sequence[Case],
    executor: Executor,
    writer: RunWriter,
    observer: Observer,
    again: Collection[str] = (),
) -> None:
    """Measure the cases that have no result yet, one after the other, and write each record at once.

    Those whose ids are in ``again`` are measured whatever they have.

    Raises:
        RunInterruptedError: interrupted; `run.json` says so.
        StorageError: a record could not be written.
    """
    done = _finished(load_run(writer.path)) - set(again)
    todo = [case for case in cases if case.case_id not in done]
    observer.started(writer.path, todo, len(done))
    status = "failed"
    try:
        executor.prepare(todo)
        record_ceilings(executor, todo, writer)
        for case in todo:
            observer.case_started(case)
            record = executor.submit(case)
            record.provenance = record.provenance or Provenance()
            record.provenance.reproduce = reproduce_command(writer.meta, record)
            writer.append(record)
            observer.case_finished(record)
        status = "complete"
    except KeyboardInterrupt:
        status = "interrupted"
        raise RunInterruptedError(writer.path) from None
    finally:
        _finish(writer, status)


def cases_left(suite: Suite | None, resume: str | Path | None) -> list[Case]:
    """What `run_suite` would measure, in its order; nothing is run, written or looked into for edits.

    Raises:
        UsageError: as `run_suite`.
    """
    run = None if resume is None else load_run(resume)
    done = set() if run is None else _finished(run)
    return [case for case in ordered(_plan(suite, run).cases) if case.case_id not in done]


def work_of(case: Case) -> int:
    """The size of a case, to order and compare cases by: multiplications of full attention."""
    return case.batch * case.num_heads * case.seqlen_q * case.seqlen_k * (case.head_dim + case.head_dim_v)


def ordered(cases: Sequence[Case], isolate: Isolation = "case") -> list[Case]:
    """The cases with equal problems next to each other, small ones first.

    Implementations of one problem share its reference and, measured within seconds of each other, the
    machine's mood. With a process per implementation, its cases stay together instead.
    """

    def key(case: Case) -> tuple[str, int, int, str]:
        together = case.implementation if isolate == "implementation" else ""
        problem = {
            name: value for name, value in case.to_dict().items() if name not in ("implementation", "options")
        }
        return together, LEVELS.index(case.level), work_of(case), repr(problem)

    return sorted(cases, key=key)


def _plan(suite: Suite | None, run: Run | None) -> Plan:
    if run is not None:
        plan = Plan.of_run(run)
        if suite is not None and not plan.same_work(Plan.of_suite(suite)):
            raise UsageError(
                f"the run {str(run.path)!r} was started with another suite, other cases or other settings: "
                f"resume it without naming a suite, or start a new run"
            )
        return plan
    if suite is None:
        raise UsageError("nothing to run: name a suite, or a run to resume")
    return Plan.of_suite(suite)


def _finished(run: Run) -> set[str]:
    return {record.case_id for record in run.records if record.status not in RETRIED}


def _sources_kept(run: Run) -> dict[str, str]:
    """The hash of the source of each result that would be kept, where its record has one."""
    done = _finished(run) & set(run.planned)
    return {
        record.case_id: record.provenance.source_hash
        for record in run.records
        if record.case_id in done and record.provenance is not None and record.provenance.source_hash
    }


def _edited(
    run: Run, kept: Mapping[str, str], present: Mapping[str, str | None], observer: Observer
) -> set[str]:
    """Which results are of another source than the implementation has now, and a note about them."""
    names = {case_id: run.planned[case_id]["implementation"] for case_id in kept}
    edited = {
        case_id
        for case_id, before in kept.items()
        if (now := present.get(names[case_id])) is not None and now != before
    }
    for name, count in sorted(Counter(names[case_id] for case_id in edited).items()):
        results = "1 result is" if count == 1 else f"{count} results are"
        observer.note(f"{results} of another source of {name}: measured again")
    return edited


def _create(plan: Plan, launch: dict[str, object], output: str | Path | None) -> RunWriter:
    path = Path(output) if output is not None else new_folder(plan.suite["name"], str(launch["started_utc"]))
    return RunWriter.create(
        path, {**plan.to_meta(), **launch, "ceilings": {}, "status": "running", "launches": [launch]}
    )


def _resume(run: Run, launch: dict[str, object], observer: Observer) -> RunWriter:
    for text in run.problems:
        observer.note(text)
    for text in differences(run.meta, launch):
        observer.note(f"not as at the start of this run: {text}")
    writer = RunWriter.resume(run.path)
    writer.update(status="running", launches=[*run.meta.get("launches", []), launch])
    return writer


def _finish(writer: RunWriter, status: str) -> None:
    try:
        writer.update(status=status, finished_utc=utc_now())
    except StorageError:
        if status == "complete":
            raise
