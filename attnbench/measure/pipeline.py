"""One case from beginning to end, in the order that keeps a record honest. In: a case and settings. Out: its
record.

Supported? Does it fit? Then one counted call gives memory, operand bytes, FLOPs and the numbers that are
graded against the truth. Only what agrees is timed.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from attnbench.contract.implementation import refusals
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

from .attentions import attentions_of, case_refusals
from .ceilings import Ceilings
from .checking import Check, prepare_check, rows_to_check, upstream_on, verdict_in_words
from .columns import fill_columns
from .counting import Counts, call_unseen, count_outputs
from .dram.section import fill_dram
from .hidden_workspace import hidden_workspace_bytes
from .interpreter import sample_kernels, trace_kernels
from .kernel_trace import KernelTrace
from .memory import Predicted
from .prediction import predict_peak
from .provenance import configurations, provenance_of, why_lacking, why_no_analysis
from .quality import measure_quality
from .record import Agreement, Memory, Record
from .sections import fill_counted, fill_theory, fill_timed
from .work import working
from .workload import Workload, build_workload

TILES_INTERPRETED_WHOLE = 200
"""An interpreted tile costs about 2.5 ms: above this many of them, programs are sampled."""
TILES_INTERPRETED_TWICE = 64
"""Up to so many, the call is made once more for the gradients of sampled keys."""


DRAM_SHARE = 0.8
"""Of a case's time limit: profilers, which come last, end before it, so that they cost no record."""


def measure_task(case: dict[str, Any], settings: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """Measure one case, plain data on both sides: what a worker calls."""
    scratch = context.get("scratch")
    record = measure_case(
        Case.from_dict(case),
        msgspec.convert(settings, MeasureSettings),
        scratch=None if scratch is None else Path(scratch),
        memory_limit_bytes=context.get("memory_limit_bytes"),
        ceilings=msgspec.convert(context.get("ceilings"), Ceilings | None),
    )
    return record.to_dict()


def measure_case(
    case: Case,
    settings: MeasureSettings,
    *,
    scratch: Path | None = None,
    memory_limit_bytes: int | None = None,
    ceilings: Ceilings | None = None,
) -> Record:
    """Measure everything the settings ask for.

    Args:
        case: what to measure.
        settings: which quantities, for how long.
        scratch: a folder in which cases of one run share their truths.
        memory_limit_bytes: a case that is predicted to need more is ``oom`` without being run.
        ceilings: of the case's device, against which its latency is held.

    Raises:
        Exception: whatever the implementation raises; the executor turns it into a status.
    """
    dram_until = time.monotonic() + DRAM_SHARE * settings.case_timeout_s
    attentions = attentions_of(case)
    record = Record(
        case_id=case.case_id,
        case=case.to_dict(),
        status="ok",
        provenance=provenance_of(case, attentions, settings),
    )
    reasons = case_refusals(case)
    if reasons:
        return _ended(record, "unsupported", "; ".join(reasons))
    if record.provenance is not None:
        record.provenance.autotune = configurations(attentions)
        record.unavailable |= why_lacking(record.provenance)
        record.unavailable |= why_no_analysis(record.provenance, case.implementation)
    fill_theory(attentions[0], case.level, record)
    with working(record):
        predicted = _predict(case, record)
    if predicted is not None and memory_limit_bytes is not None and predicted.peak_bytes > memory_limit_bytes:
        record.memory = Memory(
            predicted_peak_bytes=predicted.peak_bytes, predicted_peak_backend=predicted.backend
        )
        words = f"predicted to need {predicted.peak_bytes} bytes, {memory_limit_bytes} bytes may be used"
        return _ended(record, "oom", words)
    # Float32 products are float32's own everywhere; a kernel that wants TF32 has to say so itself.
    torch.backends.cuda.matmul.allow_tf32 = False
    workload = build_workload(case, seed=settings.seed)
    if record.theory is not None and "peak_bytes" in record.theory:
        # A cost states what the call allocates; a record's peaks hold the inputs too.
        record.theory["peak_bytes"] += sum(x.numel() * x.element_size() for x in workload.resident())
    rows = rows_to_check(workload, settings)
    folder = None if scratch is None else scratch / "truths"
    with working(record):
        # Before any call: a kernel that writes to its inputs must not make its own truth.
        check = prepare_check(
            workload, settings, rows=rows, folder=folder, memory_limit_bytes=memory_limit_bytes
        )
        first = _count_and_check(workload, settings, predicted, record, rows, check)
        wrong = first.wrong
        if wrong is None and record.agreement is not None and record.agreement.programs is None:
            wrong = _check_in_float32(workload, settings, record.agreement, folder)
        if wrong is None:
            wrong = fill_timed(workload, settings, record, check, first.out, first.seconds, ceilings)
        if wrong is None and "workspace" in settings.metrics:
            # After the clock, since it leaves C's allocator in another state than the one that was timed.
            record.memory = record.memory or Memory()
            record.memory.hidden_workspace_bytes = hidden_workspace_bytes(
                workload, first.counts, record.unavailable
            )
        if wrong is None and "quality" in settings.metrics:
            record.quality = measure_quality(workload, record.unavailable)
        if wrong is None and "dram" in settings.metrics:
            fill_dram(workload, record, dram_until, scratch, settings.dram_backend)
    return record if wrong is None else _ended(record, "incorrect", wrong)


def _ended(record: Record, status: Any, reason: str) -> Record:
    record.status, record.reason = status, reason
    record.forget_speed()
    return record


def _predict(case: Case, record: Record) -> Predicted | None:
    """Predict the peak; an implementation that cannot run on fake tensors is only measured."""
    try:
        return predict_peak(case)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        record.unavailable["memory.predicted_peak_bytes"] = f"does not run on fake tensors: {reason}"
        return None


class _FirstCall(NamedTuple):
    """What the call returned, its seconds with ``prepare``, what was counted, what is wrong or None."""

    out: torch.Tensor
    seconds: float
    counts: Counts | None
    wrong: str | None


def _count_and_check(
    workload: Workload,
    settings: MeasureSettings,
    predicted: Predicted | None,
    record: Record,
    rows: torch.Tensor | None,
    check: Check | str,
) -> _FirstCall:
    """Call once, under the counters if they see anything, fill the sections that follow from it, and grade
    what came out.
    """
    interpreted = workload.interpreted
    sample = _sample(workload) if interpreted else {}
    keep = "traffic" in settings.metrics and workload.level == "attention"
    with ExitStack() as stack:
        stack.enter_context(upstream_on(workload, rows))
        tracing = trace_kernels(sample, keep_accesses=keep)
        trace = stack.enter_context(tracing) if interpreted else None
        began = time.perf_counter()
        if workload.opaque:
            counts, outputs = None, call_unseen(workload)
        else:
            counts, outputs = count_outputs(workload, *(() if trace is None else (trace.begin_call,)))
        first_call_s = time.perf_counter() - began
    out = outputs.out.detach()
    fill_counted(workload, settings, counts, predicted, trace, record)
    if isinstance(check, str):
        record.unavailable["agreement"] = check
        return _FirstCall(out, first_call_s, counts, None)
    p, computed = workload.problem, None
    if trace is not None and sample:
        computed = torch.from_numpy(trace.computed_rows(p.batch, p.num_heads, p.seqlen_q))
    record.agreement = check.grade(outputs, computed)
    _say_what_was_cut(record, record.agreement, workload, rows, trace if sample else None)
    del outputs  # gradients that the call for sampled keys makes anew
    if computed is None:
        unchecked = _too_dear_to_repeat(workload, rows) or fill_columns(
            workload, settings, check.grades.lse_alone, rows, record.agreement
        )
        if unchecked is not None:
            record.unavailable["agreement.columns"] = unchecked
    written = check.written(workload)
    if written is not None:
        record.agreement.verdict = "changed_inputs"
        return _FirstCall(out, first_call_s, counts, written)
    wrong = None if record.agreement.verdict == "ok" else verdict_in_words(record.agreement)
    return _FirstCall(out, first_call_s, counts, wrong)


def _check_in_float32(
    workload: Workload, settings: MeasureSettings, agreement: Agreement, folder: Path | None
) -> str | None:
    """Run a 16-bit case once more in float32: there, mistakes of logic are not hidden by rounding."""
    case = workload.case
    if case.level != "attention" or case.dtype not in ("float16", "bfloat16"):
        return None
    wide = msgspec.structs.replace(case, dtype="float32", compile=False)
    if refusals(workload.implementation, wide.problem()):
        return None
    sibling = build_workload(wide, seed=settings.seed)
    rows = rows_to_check(sibling, settings)
    with upstream_on(sibling, rows), sibling.environment():
        check = prepare_check(sibling, settings, rows=rows, folder=folder)
        sibling.prepare()
        outputs = sibling.call()
    if isinstance(check, str):
        return None
    section = check.grade(outputs)
    fill_columns(sibling, settings, check.grades.lse_alone, rows, section)
    agreement.float32 = section
    if section.verdict == "ok":
        return None
    agreement.verdict = "wrong_in_float32"
    return f"in float32, {verdict_in_words(section)}"


def _say_what_was_cut(
    record: Record,
    agreement: Agreement,
    workload: Workload,
    rows: torch.Tensor | None,
    sampled: KernelTrace | None,
) -> None:
    """Write into the record that not all rows were compared, or not all programs interpreted."""
    cuts = []
    if rows is not None:
        cuts.append(f"truth on {rows.numel()} of {workload.problem.seqlen_q} query rows a head")
    if sampled is not None:
        agreement.programs = f"{sampled.programs_run} of {sampled.programs_total}"
        if workload.problem.needs_gradients:
            record.unavailable["agreement.gradients"] = (
                f"{agreement.programs} kernel programs interpreted: gradients add up all of them"
            )
        cuts.append(
            f"{agreement.programs} kernel programs interpreted, bytes of the rest by their progression"
        )
    if cuts and record.provenance is not None:
        record.provenance.reduced = "; ".join(cuts)


def _too_dear_to_repeat(workload: Workload, rows: torch.Tensor | None) -> str | None:
    """Say why the call for sampled keys is left out, if it is."""
    p = workload.problem
    if workload.level != "attention" or not workload.interpreted or rows is None or not p.needs_gradients:
        return None
    if workload.attentions[0].asked.visited_tiles(128, 128) <= TILES_INTERPRETED_TWICE:
        return None
    return "interpreting the kernels once more would take too long"


def _sample(workload: Workload) -> dict[str, Any]:
    """Return which programs to interpret; nothing where all of them are affordable."""
    asked = workload.attentions[0].asked
    if workload.level != "attention" or asked.visited_tiles(128, 128) <= TILES_INTERPRETED_WHOLE:
        return {}
    return sample_kernels(workload.implementation, asked)
