"""`attnbench run`: measure a suite. In: a suite. Out: a run folder, a summary; progress on stderr."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.contract.errors import UsageError, nearest

from .output import print_json

if TYPE_CHECKING:
    from attnbench.plan.suite import Suite

DEFAULT_SUITE = "quick"
ISOLATIONS = ("case", "implementation", "none")
FAILED, INTERRUPTED = 1, 130
_DECIMAL, _BINARY = ("kB", "MB", "GB", "TB"), ("KiB", "MiB", "GiB", "TiB")
_UNITS = {
    "": 1,
    "B": 1,
    **{unit: 1000**power for power, unit in enumerate(_DECIMAL, start=1)},
    **{unit: 1024**power for power, unit in enumerate(_BINARY, start=1)},
}


def run(
    suite: Annotated[
        str | None, typer.Argument(help=f"A suite's name or a TOML file [{DEFAULT_SUITE}].")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="The run's folder [runs/<suite>-<utc time>]."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue this run; failed cases are tried again.")
    ] = None,
    implementation: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Keep or put in this implementation; repeatable.")
    ] = None,
    seqlen: Annotated[
        list[str] | None, typer.Option(metavar="N", help="Replace the lengths, such as 4k; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:i.")] = None,
    isolate: Annotated[
        str, typer.Option(metavar="WHAT", help="A process for each `case` or `implementation`, or `none`.")
    ] = "case",
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="What a case may use, such as 8GiB [most of what is free]."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only name the cases that would run.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The records as JSON on stdout.")] = False,
) -> int:
    """Measure every case of a suite."""
    from attnbench.run.rounds import RunInterruptedError
    from attnbench.run.runner import cases_left, run_suite
    from attnbench.run.store import StorageError

    from .progress import progress_on_stderr

    if isolate not in ISOLATIONS:
        hint = nearest(isolate, ISOLATIONS)
        raise UsageError(f"unknown isolation {isolate!r}{hint}; there are {', '.join(ISOLATIONS)}")
    limit_bytes = None if memory_limit is None else parse_bytes(memory_limit)
    chosen = _suite(suite, resume, output, implementation or [], seqlen or [], device)
    if dry_run:
        left = cases_left(chosen, resume)
        cases = [case.to_dict() | {"case_id": case.case_id} for case, _ in left]
        _print_cases(cases, sum(launches for _, launches in left), json)
        return 0
    with _terminated_as_interrupted(), progress_on_stderr() as observer:
        try:
            done = run_suite(
                chosen,
                output=output,
                resume=resume,
                isolate=isolate,  # type: ignore[arg-type]
                memory_limit_bytes=limit_bytes,
                observer=observer,
                command=["attnbench", *sys.argv[1:]],
            )
        except RunInterruptedError as interruption:
            observer.close()
            typer.echo(f"attnbench: {interruption}", err=True)
            return INTERRUPTED
        except StorageError as error:
            observer.close()
            typer.echo(f"attnbench: {error}", err=True)
            return FAILED
    from attnbench.measure.record import FAILURES

    if json:
        print_json([record.to_dict() for record in done.records])
    else:
        _print_summary(done)
    return FAILED if any(record.status in FAILURES for record in done.records) else 0


def parse_bytes(text: str) -> int:
    """A number of bytes: `8589934592`, `8GiB`, `8.5 GB`.

    Raises:
        UsageError: something else, or less than one byte.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2] not in _UNITS or float(match[1]) * _UNITS[match[2]] < 1:
        units = ", ".join([*_BINARY, *_DECIMAL])
        raise UsageError(f"{text!r} is not a number of bytes; expected a whole number or one with {units}")
    return int(match[1]) if match[1].isdigit() and not match[2] else int(float(match[1]) * _UNITS[match[2]])


def _suite(
    suite: str | None,
    resume: Path | None,
    output: Path | None,
    implementations: list[str],
    seqlens: list[str],
    device: str | None,
) -> Suite | None:
    """The suite that was asked for; None continues a run with its own."""
    from attnbench.plan.suite import load_suite

    changed = bool(implementations or seqlens or device)
    if resume is not None and output is not None:
        raise UsageError("--output names the folder of a new run; --resume continues in its own")
    if resume is not None and suite is None:
        if changed:
            raise UsageError("--resume continues a run as it was planned; other cases need a new run")
        return None
    name = DEFAULT_SUITE if suite is None else suite
    return load_suite(name, implementations=implementations, seqlens=seqlens, device=device)


def _print_cases(cases: list[dict[str, Any]], launches: int, json: bool) -> None:
    if json:
        print_json(cases)
        return
    for case in cases:
        typer.echo(case["case_id"])
    from attnbench.render.numbers import plural

    at_most = f" in at most {plural(launches, 'launch', 'launches')}" if launches else ""
    typer.echo(f"{plural(len(cases), 'case')}{at_most}; nothing was run", err=True)


def _print_summary(done: Any) -> None:
    from shlex import quote
    from shutil import get_terminal_size

    from attnbench.render.terminal import render_summary

    typer.echo(render_summary(done, get_terminal_size().columns))
    typer.echo(f"\nrun: {done.path}   report: attnbench report {quote(str(done.path))}")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A polite request to end (a CI job cancelled) is an interruption: what was measured is kept."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
