"""The executor that measures in this process. In: a case. Out: a record, unless the process ends."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from attnbench.measure.record import Record
from attnbench.plan.case import Case
from attnbench.run.environments import triton_settings
from attnbench.run.jobs import ExecutorSettings, record_of
from attnbench.run.launch import utc_now
from attnbench.run.local_executor import LocalExecutor
from attnbench.run.worker import Job, run_job


class InProcessExecutor:
    """Measures in this process: nothing is forked, no timeout is kept, and a crash takes everything with it.

    Interpreted cases still go to a process of their own, unless this one interprets already.
    """

    def __init__(self, settings: ExecutorSettings) -> None:
        """Remember the settings."""
        self.settings = settings
        self._others = LocalExecutor(settings)

    def prepare(self, cases: Iterable[Case]) -> None:
        """See `LocalExecutor`."""
        if os.environ.get("TRITON_INTERPRET") != "1":
            self._others.prepare(cases)

    def sources(self, names: Iterable[str]) -> dict[str, str | None]:
        """See `LocalExecutor`; another process reads them, since this one may hold an older source."""
        return self._others.sources(names)

    def measure_ceilings(
        self, dtypes: Mapping[str, Sequence[str]], known: Mapping[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """See `LocalExecutor`; in a process of its own, which leaves no buffers behind in this one."""
        found = self._others.measure_ceilings(dtypes, known)
        self.settings = replace(self.settings, ceilings=found)
        return found

    def interprets(self, case: Case) -> bool:
        """See `LocalExecutor`."""
        return self._others.interprets(case)

    def submit(self, case: Case) -> Record:
        """Measure one case; see `Executor`."""
        self.prepare([case])
        if self.interprets(case):
            return self._others.submit(case)
        return self._run(case, self.settings.job(case))

    def time_again(self, record: Record, number: int) -> Record:
        """Time one case once more, in this same process; see `Executor`."""
        case = Case.from_dict(record.case)
        return self._run(case, self.settings.job_again(record, case))

    def _run(self, case: Case, job: Job) -> Record:
        started_utc = utc_now()
        with triton_settings():
            answer = run_job(job)
        return record_of(case, job, answer, started_utc)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._others.close()
