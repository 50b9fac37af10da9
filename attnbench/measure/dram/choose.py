"""The backend that is used: the first that works. In: a job, a time limit. Out: bytes, or why there are none.

None of them can cost the record anything: what they raise becomes a reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.measure.record import one_line

from . import cupti_pm, ncu, nvml_gpm, rocprofv3
from .backend import Backend, BackendError, DramBytes, HungError

if TYPE_CHECKING:
    from .job import Job

BACKENDS: tuple[Backend, ...] = (ncu, cupti_pm, rocprofv3, nvml_gpm)
"""From the most exact to the least."""
LIMIT_S = 60.0
"""For one backend. A child imports torch, compiles and warms up before it is profiled."""
LEAST_S = 5.0
"""With less left of a case's time, none is begun."""


@dataclass(frozen=True)
class Choice:
    """What was found, by whom, and why those before were passed over: all of them if ``found`` is None."""

    found: DramBytes | None = None
    backend: str | None = None
    passed_over: dict[str, str] = field(default_factory=dict)


def backends_named(only: str | None) -> Sequence[Backend]:
    """Return the backends to try: all of them, or the one of that name."""
    return BACKENDS if only is None else [backend for backend in BACKENDS if only == backend.NAME]


class Notes:
    """What failed for good in this run, in a folder, so that the next case need not find out again.

    A backend that hung once is given a second chance: the case may have been too long for it.
    """

    def __init__(self, folder: Path | None) -> None:
        """Keep the folder; without one nothing is remembered."""
        self._folder = folder

    def reason(self, backend: str) -> str | None:
        """Return why not to try this backend again."""
        try:
            return None if self._folder is None else (self._folder / backend).read_text(encoding="utf-8")
        except OSError:
            return None

    def add(self, backend: str, error: BackendError, reason: str) -> None:
        """Remember a failure and its reason in full, if it is one that lasts."""
        if self._folder is None:
            return
        hung = self._folder / f"{backend}.hung"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if error.lasting or (isinstance(error, HungError) and hung.exists()):
                (self._folder / backend).write_text(reason, encoding="utf-8")
            elif isinstance(error, HungError):
                hung.touch()
        except OSError:  # a full disk: it is found out again
            return


def choose(
    job: Job, until: float, *, notes: Path | None = None, backends: Sequence[Backend] = BACKENDS
) -> Choice:
    """Count with the first backend that works, until ``time.monotonic()`` says ``until``."""
    known, passed_over = Notes(notes), dict[str, str]()
    for backend in backends:
        try:
            reason = known.reason(backend.NAME) or _hopeless(backend)
            left = until - time.monotonic()
            if reason is None and left < LEAST_S:
                reason = "the case's time limit leaves no time for it"
            if reason is None:
                return Choice(backend.measure(job, min(left, LIMIT_S)), backend.NAME, passed_over)
        except BackendError as error:
            reason = _advice(str(error), error.fix)
            known.add(backend.NAME, error, reason)
        except Exception as error:
            reason = one_line(f"{type(error).__name__}: {error}")
        passed_over[backend.NAME] = reason
    return Choice(passed_over=passed_over)


def _hopeless(backend: Backend) -> str | None:
    finding = backend.probe()
    return None if finding.available else _advice(finding.detail, finding.fix)


def _advice(reason: str, fix: str | None) -> str:
    return reason if fix is None else f"{reason}; what helps: {fix}"
