"""A case as a job for a worker, and what came of it as a record. In: a case and what all of a run share, or
an answer. Out: a job, or a record.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from attnbench.device.environment import without_home
from attnbench.device.hardware import physical_cores
from attnbench.measure.record import Provenance, Record, Status, record_from_dict
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.run.worker import Answer, Job

MEASURE_TASK = "attnbench.measure.pipeline:measure_task"
AGAIN_TASK = "attnbench.measure.later_launch:time_again_task"
ROUTE_TASK = "attnbench.run.routing:route_task"
PRELOAD = (
    "torch",
    "triton.language",
    "triton.compiler.code_generator",  # with it all of Gluon, which an interpreted kernel asks for
    "attnbench.measure.pipeline",
    "attnbench.measure.later_launch",
    # What torch imports when a case is predicted, counted and timed: more than a second each time otherwise.
    "torch._dynamo.callback",
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch.utils.flop_counter",
    # What looks through all installed packages.
    "attnbench.contract.discovery:find_implementations",
    "attnbench.contract.masks:mask_types",
)


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """What all cases of a run have in common.

    `memory_limits` are bytes by kind of device; `visible_gpu` is the UUID of the GPU that workers see (None:
    those that this process sees); `ceilings` are those of each kind of device; `preload` is imported once per
    server; `task` measures a case, `again` times it once more, `route` says which cases need the interpreting
    process (None: no case). `cores` are those that cases on the CPU keep to, one of each physical core, where
    there are more of them than threads; see docs/decisions/0024.
    """

    measure: MeasureSettings = field(default_factory=MeasureSettings)
    threads: int = 1
    cores: tuple[int, ...] = field(default_factory=lambda: tuple(physical_cores()))
    memory_limits: Mapping[str, int | None] = field(default_factory=dict)
    scratch: Path | None = None
    log: Path = Path(os.devnull)
    visible_gpu: str | None = None
    ceilings: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    preload: tuple[str, ...] = PRELOAD
    task: str = MEASURE_TASK
    again: str = AGAIN_TASK
    route: str | None = ROUTE_TASK

    def job(self, case: Case) -> Job:
        """The job of a case."""
        threads = case.threads or self.threads
        context = {
            "scratch": None if self.scratch is None else str(self.scratch),
            "memory_limit_bytes": self.memory_limits.get(case.device),
            "threads": threads,
            "cores": list(self.cores) if case.device == "cpu" and len(self.cores) > threads else None,
            "ceilings": self.ceilings.get(case.device),
        }
        measure = msgspec.to_builtins(self.measure)
        return Job(task=self.task, case=case.to_dict(), settings=measure, context=context)

    def job_again(self, record: Record, case: Case) -> Job:
        """The job of one more launch of a case, whose record this is."""
        job = self.job(case)
        checked = None if record.agreement is None else record.agreement.out_crc32
        timer = None if record.latency is None else record.latency.timer
        known = {"out_crc32": checked, "timer": timer}
        return msgspec.structs.replace(job, task=self.again, context=job.context | known)


def record_of(case: Case, job: Job, answer: Answer, started_utc: str) -> Record:
    """The record of what a job came to."""
    if answer.record is None:
        return failed_record(case, job, answer.status or "error", answer.reason, started_utc)
    try:
        return record_from_dict(answer.record)
    except msgspec.ValidationError as error:
        return failed_record(case, job, "error", f"the measurement returned no record: {error}", started_utc)


def failed_record(case: Case, job: Job, status: Status, reason: str, started_utc: str) -> Record:
    """The record of a case that ended without a result: how it was asked for, and the reason."""
    return Record(
        case_id=case.case_id,
        case=case.to_dict(),
        status=status,
        reason=without_home(reason),
        unavailable={"provenance": f"the case ended as {status!r} before it could say what ran"},
        provenance=Provenance(
            seed=job.settings.get("seed"), threads=job.context.get("threads"), started_utc=started_utc
        ),
    )
