"""The ceilings of a run's devices, measured once at its start. In: its cases. Out: `ceilings` of `run.json`.

`{"cpu": {…}, "cuda": {…}}`: for each kind of device that the cases use, the fields of
`attnbench.measure.ceilings.Ceilings`; where none could be measured `{"unavailable": {"ceilings": why}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.run.launch import differences
from attnbench.run.store import RunWriter
from attnbench.run.worker import Answer, Job

TASK = "attnbench.measure.ceilings:ceilings_task"
TIMEOUT_S = 120.0
BUDGET_PART = 0.1
"""Of what one case may take for its samples: for those of one rate."""

Plain = dict[str, Any]


@runtime_checkable
class MeasuresCeilings(Protocol):
    """An executor that can measure the ceilings of the devices it uses."""

    def measure_ceilings(
        self, dtypes: Mapping[str, Sequence[str]], known: Mapping[str, Plain]
    ) -> dict[str, Plain]:
        """Measure each kind of device for cases of these dtypes, unless it is `known`, and hold the cases to
        come against what was found."""


def record_ceilings(executor: object, cases: Sequence[Case], writer: RunWriter) -> None:
    """Measure the ceilings for the cases to come, where the executor can, and write them into `run.json`.

    A run that is resumed keeps its own, if neither the machine nor its software has changed.
    """
    timed = "latency" in writer.meta["measure"]["metrics"]
    if not cases or not timed or not isinstance(executor, MeasuresCeilings):
        return
    launch = writer.meta["launches"][-1]
    before = {} if differences(writer.meta, launch) else writer.meta.get("ceilings") or {}
    known = {kind: one for kind, one in before.items() if "ceilings" not in one.get("unavailable", {})}
    dtypes: dict[str, list[str]] = {
        kind: sorted({case.dtype for case in cases if case.device == kind})
        for kind in dict.fromkeys(case.device for case in cases)
    }
    writer.update(ceilings=executor.measure_ceilings(dtypes, known))


def job(kind: str, dtypes: Sequence[str], settings: MeasureSettings, context: Plain) -> Job:
    """Return what a worker is asked."""
    case = {"device": kind, "dtypes": list(dtypes)}
    return Job(
        task=TASK, case=case, settings={"budget_s": BUDGET_PART * settings.latency_budget_s}, context=context
    )


def of_answer(answer: Answer) -> Plain:
    """Return the ceilings that a worker measured, or why there are none."""
    if answer.record is None:
        return {"unavailable": {"ceilings": answer.reason}}
    return answer.record
