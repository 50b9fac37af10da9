"""Progress of a run on stderr: a bar of launches with the time left on a terminal; elsewhere one line a case
and one for each further round of launches.

It is drawn between launches alone, so that nothing of ours runs while a sample is taken.
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
from attnbench.run.rounds import Observer
from attnbench.run.runner import work_of

if TYPE_CHECKING:
    from attnbench.measure.record import Record
    from attnbench.plan.case import Case

LATER_PART = 0.2
"""What a later round takes of the time of the first, where there are no other signs."""


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
        self._round, self._rounds_left = 1, 0
        self._works: list[int] = []
        self._seconds: list[float] = []
        self._passed = 0
        self._began = 0.0

    def started(self, path: Path, todo: Sequence[Case], done: int) -> None:
        """Say where the run lies."""
        kept = f", {done} {'has' if done == 1 else 'have'} a result already" if done else ""
        self._print(f"{plural(len(todo), 'case')} to measure{kept}; run {path}")
        self._bar.update(self._task, total=len(todo), description="worker processes start")
        if self._console.is_terminal:
            self._bar.start()

    def round_started(self, number: int, last: int, cases: Sequence[Case]) -> None:
        """Count what is to come anew: which cases take part is known one round ahead."""
        self._passed += len(self._seconds)
        self._round, self._rounds_left = number, last - number
        self._works, self._seconds = [work_of(case) for case in cases], []
        if number > 1 and not self._console.is_terminal:
            self._print(f"launch {number} of {last}: {plural(len(cases), 'case')}")
        self._bar.update(self._task, total=self._passed + len(cases) * (1 + self._rounds_left))

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
        later = self._rounds_left * (LATER_PART if self._round == 1 else 1.0)
        left = seconds_left(self._works, self._seconds, later)
        self._bar.update(self._task, advance=1, left=f"{timedelta(seconds=round(left))} left")
        latency = record.latency.median_ms if record.latency is not None else None
        said = f" {format_ms(latency)}" if latency is not None else ""
        reason = f": {with_units(record.reason)}" if record.reason else ""
        new = self._round == 1 and not self._console.is_terminal
        if new or record.status not in ("ok", "unsupported"):
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


def seconds_left(works: Sequence[float], seconds: Sequence[float], rounds_after: float = 0.0) -> float:
    """Estimate how long the launches take that are not done yet.

    A launch costs a fixed time and one that grows with its case's work: the line through those of this round
    that are done says both. Until they differ in work, the others are taken to be like them.

    Args:
        works: size of every case of this round, in its order.
        seconds: how long the first of them took.
        rounds_after: how many times as long as this round those that follow take.
    """
    done, rest = works[: len(seconds)], works[len(seconds) :]
    mean = statistics.fmean(seconds)
    this = mean * len(rest)
    if len(set(done)) > 1:
        slope, intercept = statistics.linear_regression(done, seconds)
        if slope > 0 and intercept >= 0:
            this = sum(intercept + slope * work for work in rest)
    return this + rounds_after * (sum(seconds) + this)


@contextmanager
def progress_on_stderr() -> Iterator[ProgressOnStderr]:
    """An observer whose bar is gone afterwards, however the block ends."""
    progress = ProgressOnStderr()
    try:
        yield progress
    finally:
        progress.close()
