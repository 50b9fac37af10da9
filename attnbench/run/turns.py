"""Runs take turns on a device. In: an executor. Out: one that times no case while another run does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from attnbench.measure.record import Record
from attnbench.measure.verdicts import as_shared
from attnbench.plan.case import Case
from attnbench.run.device_lock import Holder, device_lock
from attnbench.run.executor import ExecutorSettings, InProcessExecutor, LocalExecutor
from attnbench.run.launch import utc_now

_TIMED = {"latency", "share", "optimizer"}
_OVERHEAD_S = 10.0
"""What forking a worker and ending one that hangs may take beyond the case's own limit."""


class TakingTurns:
    """Hands cases to another executor, each timed one under the lock of its device.

    The lock is held for a whole case, its checks included, since these keep the device busy, too. Where its
    holder overran the limit that it stated, the case is measured anyway and its latency is called `shared`.
    """

    def __init__(
        self,
        executor: LocalExecutor | InProcessExecutor,
        settings: ExecutorSettings,
        note: Callable[[str], None],
    ) -> None:
        """Take the executor, the settings that it was made with, and whom to tell about waiting."""
        self._executor = executor
        self._settings = settings
        self._note = note
        self._said: set[str] = set()
        self._since_utc = utc_now()

    def prepare(self, cases: Iterable[Case]) -> None:
        """See `Executor`."""
        self._executor.prepare(cases)

    def measure_ceilings(
        self, dtypes: Mapping[str, Sequence[str]], known: Mapping[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """See `MeasuresCeilings`; what another run disturbs is called `shared` by the ceilings themselves."""
        return self._executor.measure_ceilings(dtypes, known)

    def submit(self, case: Case) -> Record:
        """Wait for the device, then measure one case; see `Executor`."""
        return self._alone(case, lambda: self._executor.submit(case))

    def time_again(self, record: Record, number: int) -> Record:
        """Wait for the device, then time a case once more; see `Executor`."""
        case = Case.from_dict(record.case)
        return self._alone(case, lambda: self._executor.time_again(record, number))

    def _alone(self, case: Case, measure: Callable[[], Record]) -> Record:
        self._executor.prepare([case])
        if self._executor.interprets(case) or not _TIMED.intersection(self._settings.measure.metrics):
            return measure()
        device = self._settings.visible_gpu or "cuda" if case.device == "cuda" else "cpu"
        with ExitStack() as stack:
            alone = True
            try:
                alone = stack.enter_context(
                    device_lock(
                        device,
                        since_utc=self._since_utc,
                        limit_s=self._settings.measure.case_timeout_s + _OVERHEAD_S,
                        waiting=lambda holder: self._say_who(device, holder),
                    )
                )
            except OSError as error:
                self._say(f"other runs can't be kept off {device}: {error.strerror}")
            record = measure()
        if not alone:
            self._say(f"measured beside another run on {device}, which does not end its turn: `shared`")
            if record.latency is not None:
                record.latency.verdict = as_shared(record.latency.verdict)
        return record

    def _say_who(self, device: str, holder: Holder) -> None:
        self._say(
            f"waiting for {device}: process {holder.pid}, a run since {holder.since_utc}, measures on it"
        )

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._note(text)
