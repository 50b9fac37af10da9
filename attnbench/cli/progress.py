"""Progress of a run on stderr: a bar with the time left on a terminal, one line a case elsewhere.

It is drawn between cases alone, so that nothing of ours runs while a sample is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from attnbench.measure.record import Record
    from attnbench.plan.case import Case


class ProgressOnStderr:
    """An observer that draws; see `attnbench.run.runner.Observer`."""

    def __init__(self) -> None:
        """Draw nothing yet."""
        self._console = Console(file=sys.stderr, highlight=False)
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            auto_refresh=False,
            transient=True,
            speed_estimate_period=1e9,
        )
        self._task = self._bar.add_task("", total=None)
        self._done = 0
        self._total = 0

    def started(self, path: Path, cases: int, done: int) -> None:
        """Say where the run lies."""
        self._total = cases
        self._done = done
        kept = f", {done} of them done before" if done else ""
        self._print(f"{cases} cases{kept}, run {path}")
        self._bar.update(self._task, total=cases - done)
        if self._console.is_terminal:
            self._bar.start()

    def note(self, text: str) -> None:
        """Print a remark."""
        self._print(text)

    def case_started(self, case: Case) -> None:
        """Show which case is measured now."""
        self._bar.update(self._task, description=case.case_id)
        self._draw()

    def case_finished(self, record: Record) -> None:
        """Count it; print it, too, where there is no bar or where something is wrong."""
        self._done += 1
        self._bar.advance(self._task)
        latency = record.latency.median_ms if record.latency is not None else None
        said = f" {latency:.3g} ms" if latency is not None else ""
        reason = f": {record.reason}" if record.reason else ""
        if not self._console.is_terminal or record.status not in ("ok", "unsupported"):
            self._print(f"[{self._done}/{self._total}] {record.case_id} {record.status}{said}{reason}")
        self._draw()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def _draw(self) -> None:
        if self._console.is_terminal:
            self._bar.refresh()

    def _print(self, line: str) -> None:
        if self._console.is_terminal:
            self._console.print(Text(line))
        else:
            print(line, file=sys.stderr, flush=True)


@contextmanager
def progress_on_stderr() -> Iterator[ProgressOnStderr]:
    """An observer whose bar is gone afterwards, however the block ends."""
    progress = ProgressOnStderr()
    try:
        yield progress
    finally:
        progress.close()
