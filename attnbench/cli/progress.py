"""Progress of a run on stderr: a bar with the time left on a terminal, one line a case elsewhere.

It is drawn between cases alone, so that nothing of ours runs while a sample is taken.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from attnbench.render.numbers import format_ms, plural, with_units
from attnbench.run.runner import Observer, work_of

if TYPE_CHECKING:
    from attnbench.measure.record import Record
    from attnbench.plan.case import Case


class ProgressOnStderr(Observer):
    """An observer that draws."""

    def __init__(self) -> None:
        """Draw nothing yet."""
        self._console = Console(file=sys.stderr, highlight=False)
        self._bar = Progress(
            BarColumn(bar_width=12, table_column=Column(width=12, no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=7)),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True, min_width=12)),
            # What is left of the line is the case's; a long id loses its end, not its neighbours.
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, left="")
        self._works: list[int] = []
        self._seconds: list[float] = []
        self._began = 0.0

    def started(self, path: Path, todo: Sequence[Case], done: int) -> None:
        """Say where the run lies."""
        self._works = [work_of(case) for case in todo]
        kept = f", {done} {'has' if done == 1 else 'have'} a result already" if done else ""
        self._print(f"{plural(len(todo), 'case')} to measure{kept}; run {path}")
        self._bar.update(self._task, total=len(todo), description="worker processes start")
        if self._console.is_terminal:
            self._bar.start()

    def note(self, text: str) -> None:
        """Print a remark."""
        self._print(text)

    def case_started(self, case: Case) -> None:
        """Show which case is measured now."""
        self._bar.update(self._task, description=case.case_id)
        self._draw()
        self._began = time.monotonic()

    def case_finished(self, record: Record) -> None:
        """Count it; print it, too, where there is no bar or where something is wrong."""
        self._seconds.append(time.monotonic() - self._began)
        left = seconds_left(self._works, self._seconds)
        self._bar.update(self._task, advance=1, left=f"{timedelta(seconds=round(left))} left")
        latency = record.latency.median_ms if record.latency is not None else None
        said = f" {format_ms(latency)}" if latency is not None else ""
        reason = f": {with_units(record.reason)}" if record.reason else ""
        if not self._console.is_terminal or record.status not in ("ok", "unsupported"):
            number = f"[{len(self._seconds)}/{len(self._works)}]"
            self._print(f"{number} {record.case_id} {record.status}{said}{reason}")
        self._draw()

    def close(self) -> None:
        """Take the bar away, if there is one."""
        if self._bar.live.is_started:
            self._bar.stop()

    def _draw(self) -> None:
        if self._console.is_terminal:
            self._bar.refresh()

    def _print(self, line: str) -> None:
        if self._console.is_terminal:
            self._console.print(Text(line))
        else:
            print(line, file=sys.stderr, flush=True)


def seconds_left(works: Sequence[float], seconds: Sequence[float]) -> float:
    """Estimate how long the cases take that are not done yet.

    A case costs a fixed time and one that grows with its work: the line through the cases that are done says
    both. Until they differ in work, the others are taken to be like them.

    Args:
        works: size of every case, in the order of the run.
        seconds: how long the first of them took.
    """
    done, rest = works[: len(seconds)], works[len(seconds) :]
    mean = statistics.fmean(seconds)
    if len(set(done)) < 2:
        return mean * len(rest)
    slope, intercept = statistics.linear_regression(done, seconds)
    if slope <= 0 or intercept < 0:
        return mean * len(rest)
    return sum(intercept + slope * work for work in rest)


@contextmanager
def progress_on_stderr() -> Iterator[ProgressOnStderr]:
    """An observer whose bar is gone afterwards, however the block ends."""
    progress = ProgressOnStderr()
    try:
        yield progress
    finally:
        progress.close()
