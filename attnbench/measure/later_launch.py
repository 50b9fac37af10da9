"""A case that was measured once, timed once more in another process. In: the case, and what its output was.
Out: a record of this launch alone: a latency, or what went wrong.

Nothing is predicted, counted or compared with a truth, unless the output is not, to the bit, the one that
the first launch found right; then it is graded as that one was.
"""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

from .attentions import attentions_of
from .checking import crc32_of, prepare_check, rows_to_check
from .counting import call_unseen
from .latency import measure_latency, time_and_keep, timer_for
from .provenance import provenance_of
from .record import Record
from .unchanged import changed_inputs, fingerprints
from .work import working
from .workload import Workload, build_workload


def time_again_task(
    case: dict[str, Any], settings: dict[str, Any], context: dict[str, Any]
) -> dict[str, Any]:
    """Time one case, plain data on both sides: what a worker calls."""
    scratch = context.get("scratch")
    record = time_again(
        Case.from_dict(case),
        msgspec.convert(settings, MeasureSettings),
        out_crc32=context.get("out_crc32"),
        timer=context.get("timer"),
        memory_limit_bytes=context.get("memory_limit_bytes"),
        scratch=None if scratch is None else Path(scratch),
    )
    return record.to_dict()


def time_again(
    case: Case,
    settings: MeasureSettings,
    *,
    out_crc32: int | None,
    timer: str | None = None,
    scratch: Path | None = None,
    memory_limit_bytes: int | None = None,
) -> Record:
    """Time a case, and see to it that its output is still right and its inputs unwritten.

    Args:
        case: measured before, and found ``ok``.
        settings: as then.
        out_crc32: of the output that was found right; None where none was compared with a truth.
        timer: what the launches before were timed with; another is used only where that one can't be.
        scratch: the folder in which cases of one run share their truths.
        memory_limit_bytes: what a truth may need.

    Raises:
        Exception: whatever the implementation raises; the executor turns it into a status.
    """
    record = Record(
        case_id=case.case_id,
        case=case.to_dict(),
        status="ok",
        provenance=provenance_of(case, attentions_of(case), settings),
    )
    torch.backends.cuda.matmul.allow_tf32 = False
    workload = build_workload(case, seed=settings.seed)
    given = fingerprints(workload.inputs)
    with working(record):
        if workload.opaque or workload.device.type == "cuda":
            call_unseen(workload)  # compiles and tunes, which is part of no sample
        timing = timer_for(workload, timer, settings.timer)
        measure = partial(measure_latency, timer=timing, unavailable=record.unavailable)
        record.latency, record.telemetry, last = time_and_keep(workload, settings, measure)
        wrong = changed_inputs(given, workload.inputs)
        if wrong is None and out_crc32 is not None and crc32_of(last) != out_crc32:
            wrong = _graded(workload, settings, last, scratch, memory_limit_bytes)
    if wrong is not None:
        record.status, record.reason = "incorrect", wrong
        record.forget_speed()
    return record


def _graded(
    workload: Workload,
    settings: MeasureSettings,
    out: torch.Tensor,
    scratch: Path | None,
    memory_limit_bytes: int | None,
) -> str | None:
    """Say what is wrong with an output, by the truth of its inputs, which are as they were drawn."""
    rows = rows_to_check(workload, settings)
    folder = None if scratch is None else scratch / "truths"
    check = prepare_check(workload, settings, rows=rows, folder=folder, memory_limit_bytes=memory_limit_bytes)
    return None if isinstance(check, str) else check.wrong_later(out)
