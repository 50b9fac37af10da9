"""Runs take turns on a device. In: an executor. Out: one that times nothing while another run does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from attnbench.measure.record import Record
from attnbench.measure.verdicts import as_shared
from attnbench.plan.case import Case
from attnbench.run.ceilings import TIMEOUT_S
from attnbench.run.device_lock import Holder, device_lock
from attnbench.run.executor import ExecutorSettings, InProcessExecutor, LocalExecutor
from attnbench.run.launch import utc_now

_DISTURBED = {"latency", "share", "optimizer", "energy", "dram"}
"""Metrics that see what else the device does."""
_OVERHEAD_S = 10.0
"""What forking a worker and ending one that hangs may take beyond the case's own limit."""


class TakingTurns:
    """Hands cases to another executor, each timed one under the lock of its device, and so the ceilings.

    The lock is held for a whole case, its checks included, since these keep the device busy, too. Where its
    holder overran the limit that it stated, it is measured anyway, and called `shared`.
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
        """Wait for each device, then measure its ceilings; see `MeasuresCeilings`."""
        found = dict(known)
        for kind in dtypes:
            if kind not in found:
                with self._turn(kind, TIMEOUT_S) as alone:
                    found = self._executor.measure_ceilings({kind: dtypes[kind]}, found)
                if not alone:
                    found[kind] = found[kind] | {"verdict": as_shared(found[kind].get("verdict"))}
        return self._executor.measure_ceilings({}, found)

    def submit(self, case: Case) -> Record:
        """Wait for the device, then measure one case; see `Executor`."""
        return self._alone(case, lambda: self._executor.submit(case))

    def time_again(self, record: Record, number: int) -> Record:
        """Wait for the device, then time a case once more; see `Executor`."""
        case = Case.from_dict(record.case)
        return self._alone(case, lambda: self._executor.time_again(record, number))

    def _alone(self, case: Case, measure: Callable[[], Record]) -> Record:
        self._executor.prepare([case])
        if self._executor.interprets(case) or not _DISTURBED.intersection(self._settings.measure.metrics):
            return measure()
        with self._turn(case.device, self._settings.measure.case_timeout_s) as alone:
            record = measure()
        if not alone and record.latency is not None:
            record.latency.verdict = as_shared(record.latency.verdict)
        return record

    @contextmanager
    def _turn(self, kind: str, limit_s: float) -> Iterator[bool]:
        """Hold the device for the block; yields whether it is ours alone."""
        device = self._settings.visible_gpu or "cuda" if kind == "cuda" else "cpu"
        with ExitStack() as stack:
            alone = True
            try:
                alone = stack.enter_context(
                    device_lock(
                        device,
                        since_utc=self._since_utc,
                        limit_s=limit_s + _OVERHEAD_S,
                        waiting=lambda holder: self._say_who(device, holder),
                    )
                )
            except OSError as error:
                self._say(f"other runs can't be kept off {device}: {error.strerror}")
            yield alone
        if not alone:
            self._say(f"measured beside another run on {device}, which does not end its turn: `shared`")

    def _say_who(self, device: str, holder: Holder) -> None:
        self._say(
            f"waiting for {device}: process {holder.pid}, a run since {holder.since_utc}, measures on it"
        )

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._note(text)
