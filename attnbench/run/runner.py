"""A suite becomes a run: its cases in a sensible order, in a folder. In: a suite. Out: `Run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from attnbench.contract.errors import UsageError, nearest
from attnbench.device.hardware import default_threads
from attnbench.plan.case import LEVELS, Case
from attnbench.plan.suite import Suite, load_suite
from attnbench.run.executor import ExecutorSettings, Isolation, make_executor
from attnbench.run.launch import Plan, circumstances, differences, memory_limits
from attnbench.run.rounds import Observer, finished, launches_missing, run_cases
from attnbench.run.scratch import scratch_folder
from attnbench.run.store import Run, RunWriter, load_run, new_folder
from attnbench.run.turns import TakingTurns

_LOG = "worker.log"


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
            kept while the source of their implementation is the same, and have the launches that they miss;
            `timeout`, `crashed` and `error` are tried again.
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
                run_cases(
                    ordered(plan.cases, isolate),
                    TakingTurns(executor, settings, observer.note),
                    writer,
                    observer,
                    launches=plan.measure.launches,
                    again=edited,
                )
            finally:
                if settings.log.is_file() and not settings.log.stat().st_size:
                    settings.log.unlink()
    return load_run(writer.path)


def cases_left(suite: Suite | None, resume: str | Path | None) -> list[tuple[Case, int]]:
    """What `run_suite` would measure, in its order, each case with the launches it misses at most.

    Nothing is run, written or looked into for edits.

    Raises:
        UsageError: as `run_suite`.
    """
    run = None if resume is None else load_run(resume)
    records = {} if run is None else {record.case_id: record for record in run.records}
    plan = _plan(suite, run)
    missing = [
        (case, launches_missing(records.get(case.case_id), plan.measure.launches))
        for case in ordered(plan.cases)
    ]
    return [(case, count) for case, count in missing if count]


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


def _sources_kept(run: Run) -> dict[str, str]:
    """The hash of the source of each result that would be kept, where its record has one."""
    done = finished(run) & set(run.planned)
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
