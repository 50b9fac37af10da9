"""The executor that measures in processes of this machine: workers of two fork servers, one for native code
and one whose Triton interprets. In: a case. Out: a record, whatever happens to the process that measures it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

from attnbench.device.environment import without_home
from attnbench.device.limits import oom_kills
from attnbench.measure.record import Record, Status
from attnbench.plan.case import Case
from attnbench.run import ceilings
from attnbench.run.environments import server_environment
from attnbench.run.forkserver import Ending, ForkServer, ServerError, Worker, WorkerEndedError
from attnbench.run.jobs import ExecutorSettings, failed_record, record_of
from attnbench.run.launch import utc_now
from attnbench.run.routing import INTERPRETED, NATIVE, source_not_loadable
from attnbench.run.worker import Answer, Job

SOURCES_TASK = "attnbench.run.routing:sources_task"
_ROUTE_TIMEOUT_S = 120.0
_TAIL_BYTES, _TAIL_LINES = 16384, 3

Isolation = Literal["case", "implementation", "none"]


class LocalExecutor:
    """Measures each case in a worker process of its own, or all cases of one implementation in one worker."""

    def __init__(self, settings: ExecutorSettings, isolate: Isolation = "case") -> None:
        """Remember the settings; servers start when the first case needs them."""
        self.settings = settings
        self._isolate = isolate
        self._servers: dict[str, ForkServer] = {}
        self._executions: dict[str, str] = {}
        self._worker: Worker | None = None
        self._worker_key: tuple[str, str, int] | None = None

    def prepare(self, cases: Iterable[Case]) -> None:
        """Find out at once, rather than one by one, which of the cases need the interpreting process."""
        unknown = {case.case_id: case.to_dict() for case in cases if case.case_id not in self._executions}
        if not unknown or self.settings.route is None:
            return
        job = Job(task=self.settings.route, case=unknown, settings={}, context={"threads": 1})
        answer = Answer()
        # Both servers import at the same time, before anything is measured.
        on_cpu = any(plain["device"] == "cpu" for plain in unknown.values())
        likely = [NATIVE, INTERPRETED] if on_cpu else [NATIVE]
        for execution in likely:
            self._server(execution).start()
        try:
            worker = self._server(NATIVE).fork()
            answer = worker.call(job, _ROUTE_TIMEOUT_S)
            worker.close()
        except (TimeoutError, WorkerEndedError, ServerError):
            pass  # an implementation that breaks the question will break its own cases, and is named there
        self._executions.update(dict.fromkeys(unknown, NATIVE) | (answer.record or {}))
        for execution in likely:
            if execution in self._executions.values():
                with contextlib.suppress(ServerError):  # then the first case that needs it says so
                    self._server(execution).wait_until_ready()
            else:
                self._servers.pop(execution).close()

    def sources(self, names: Iterable[str]) -> dict[str, str | None]:
        """The hash of each implementation's present source; None or nothing where it can't be told."""
        found: dict[str, str | None] = {}
        for name in names:
            # A worker each: a file that ends the process that loads it must not hide what others became.
            job = Job(task=SOURCES_TASK, case={name: None}, settings={}, context={"threads": 1})
            try:
                worker = self._server(NATIVE).fork()
                found.update(worker.call(job, _ROUTE_TIMEOUT_S).record or {})
                worker.close()
            except (TimeoutError, WorkerEndedError):
                found[name] = source_not_loadable(name)
            except ServerError:
                break
        return found

    def measure_ceilings(
        self, dtypes: Mapping[str, Sequence[str]], known: Mapping[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Measure each kind of device in a worker of its own; see `MeasuresCeilings`."""
        found = dict(known)
        for kind in dtypes.keys() - known.keys():
            limit = self.settings.memory_limits.get(kind)
            context = {"threads": self.settings.threads, "memory_limit_bytes": limit}
            job = ceilings.job(kind, dtypes[kind], self.settings.measure, context)
            try:
                worker = self._server(NATIVE).fork()
                answer = worker.call(job, ceilings.TIMEOUT_S)
                worker.close()
            except (TimeoutError, WorkerEndedError, ServerError) as error:
                answer = Answer(status="error", reason=f"{type(error).__name__}: {error}")
            found[kind] = ceilings.of_answer(answer)
        self.settings = replace(self.settings, ceilings=found)
        return found

    def submit(self, case: Case) -> Record:
        """Measure one case; see `Executor`."""
        return self._launch(case, self.settings.job(case), 1)

    def time_again(self, record: Record, number: int) -> Record:
        """Time one case once more, in a process that has no part in its earlier launches; see `Executor`."""
        case = Case.from_dict(record.case)
        return self._launch(case, self.settings.job_again(record, case), number)

    def _launch(self, case: Case, job: Job, number: int) -> Record:
        self.prepare([case])
        started_utc = utc_now()
        log_start, kills = self._log_size(), oom_kills()
        timeout_s = self.settings.measure.case_timeout_s

        def failed(status: Status, reason: str) -> Record:
            self._worker = None
            return failed_record(case, job, status, reason, started_utc)

        try:
            answer = self._worker_for(case, number).call(job, timeout_s)
        except TimeoutError:
            return failed("timeout", f"no result after {timeout_s:g} s; its process was ended")
        except WorkerEndedError as error:
            killed_for_memory = error.ending.exit_code == -9 and _grew(kills, oom_kills())
            if killed_for_memory:
                return failed("oom", f"the kernel ended the process for memory{_held(error.ending)}")
            return failed("crashed", error.ending.words + self._last_output(log_start))
        except ServerError as error:
            return failed("crashed", f"{error}{self._last_output(log_start)}")
        if answer.record is None or self._isolate == "case":
            self._let_go()
        return record_of(case, job, answer, started_utc)

    def interprets(self, case: Case) -> bool:
        """Whether the case was found to need the interpreting process."""
        return self._executions.get(case.case_id) == INTERPRETED

    def close(self) -> None:
        """End the servers and with them whatever still runs."""
        self._worker = None
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _worker_for(self, case: Case, number: int) -> Worker:
        key = (self._executions.get(case.case_id, NATIVE), case.implementation, number)
        if self._worker is None or key != self._worker_key:
            self._let_go()
            self._worker, self._worker_key = self._server(key[0]).fork(), key
        return self._worker

    def _let_go(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _server(self, execution: str) -> ForkServer:
        if execution not in self._servers:
            environment = server_environment(
                interpreted=execution == INTERPRETED,
                threads=self.settings.threads,
                visible_gpu=self.settings.visible_gpu,
                scratch=self.settings.scratch,
            )
            self._servers[execution] = ForkServer(environment, self.settings.preload, self.settings.log)
        return self._servers[execution]

    def _log_size(self) -> int:
        return self.settings.log.stat().st_size if self.settings.log.is_file() else 0

    def _last_output(self, start: int) -> str:
        """What the process wrote last, for a reason in one line."""
        if not self.settings.log.is_file():
            return ""
        with self.settings.log.open("rb") as file:
            file.seek(max(start, self._log_size() - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
        fatal = re.search(r"Fatal Python error: (.*)(?:\n.*)*?\n(  File .*)", text)
        lines = [
            line.strip() for line in text[: fatal.start() if fatal else None].splitlines() if line.strip()
        ]
        said = lines[-_TAIL_LINES:] + ([f"{fatal[1]} in {fatal[2].strip()}"] if fatal else [])
        return without_home("; last output: " + " | ".join(said)) if said else ""


def _grew(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before


def _held(ending: Ending) -> str:
    return "" if ending.peak_bytes is None else f"; it held {ending.peak_bytes} bytes"
