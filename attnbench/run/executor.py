"""Executors: a case in, a record out, whatever happens to the process that measures it.

`LocalExecutor` measures in workers, `InProcessExecutor` in this process, where a crash is a crash. Others can
join: both sides are plain data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from attnbench.measure.record import Record
from attnbench.plan.case import Case
from attnbench.run.in_process import InProcessExecutor
from attnbench.run.jobs import PRELOAD, ExecutorSettings
from attnbench.run.local_executor import Isolation, LocalExecutor

__all__ = [
    "PRELOAD",
    "Executor",
    "ExecutorSettings",
    "InProcessExecutor",
    "Isolation",
    "LocalExecutor",
    "make_executor",
]


class Executor(Protocol):
    """Turns cases into records; what a case does to its process is the case's status, never an exception."""

    def prepare(self, cases: Iterable[Case]) -> None:
        """Learn which cases will come."""

    def submit(self, case: Case) -> Record:
        """Measure one case."""

    def time_again(self, record: Record, number: int) -> Record:
        """Time the case of a record once more, as its launch ``number``: the record of that launch alone."""


def make_executor(settings: ExecutorSettings, isolate: Isolation) -> LocalExecutor | InProcessExecutor:
    """The executor that isolates as asked."""
    return InProcessExecutor(settings) if isolate == "none" else LocalExecutor(settings, isolate)
