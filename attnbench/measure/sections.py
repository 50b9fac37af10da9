"""A record's sections, each where it was asked for and can be had. In: a workload, counted and checked.

What cannot be had is named in the record, with the reason.
"""

from functools import partial

from torch import Tensor

from attnbench.plan.settings import MeasureSettings

from .attentions import Attention
from .ceilings import Ceilings
from .checking import Check, crc32_of
from .counting import UNSEEN, Counts
from .energy import measure_energy
from .flops import ATTENTION_ALONE, NOT_STATED, measure_flops
from .interpreter import BACKEND as INTERPRETER
from .kernel_trace import KernelTrace
from .l2_prediction import predict_dram
from .latency import time_and_keep
from .launches import say_what_one_launch_lacks
from .memory import Predicted, measure_memory
from .optimizer import has_step, measure_optimizer
from .plausibility import measure_plausible_latency
from .record import Record, Telemetry, Traffic
from .share import latency_fraction, measure_share
from .telemetry import why_lacking
from .timing import UnusableTimerError
from .traffic import measure_traffic
from .workload import Workload

NO_COUNTERS = "counted by the hardware of a GPU alone; this case ran on the CPU"
NO_BACKEND = "no operator of the call names a backend"
NOT_ASKED = "counted where a suite names the metric 'dram'"
NOT_REACHED = "the case ended before its DRAM bytes were counted"


def fill_theory(attention: Attention, level: str, record: Record) -> None:
    """Fill what the implementation states, in closed form, of one attention."""
    if level != "attention":
        record.unavailable["theory"] = ATTENTION_ALONE
        return
    stated = attention.implementation.cost(attention.problem)
    record.theory = stated.theory()
    for name in stated.unknown():
        record.unavailable[f"theory.{name}"] = NOT_STATED


def fill_counted(
    workload: Workload,
    settings: MeasureSettings,
    counts: Counts | None,
    predicted: Predicted | None,
    trace: KernelTrace | None,
    record: Record,
) -> None:
    """Fill memory, traffic, FLOPs and provenance from the first call; ``counts`` is None if compiled."""
    missing = record.unavailable
    if "memory" in settings.metrics:
        record.memory = measure_memory(workload, counts, predicted, missing)
        if record.memory.process_bytes is None:
            missing.setdefault("memory.process_bytes", "of a GPU's memory; this case ran on the CPU")
        if record.memory.peak_bytes is None:
            missing["memory.peak_bytes"] = missing["memory.peak_increment_bytes"] = UNSEEN
        if record.memory.reserved_bytes is None:
            why = "the CPU has no caching allocator"
            missing["memory.reserved_bytes"] = missing["memory.requested_peak_bytes"] = why
        if "workspace" not in settings.metrics:
            missing["memory.hidden_workspace_bytes"] = "measured where a suite names the metric 'workspace'"
    if "traffic" in settings.metrics:
        record.traffic = measure_traffic(workload, counts, missing)
        _requested(workload, trace, record.traffic, missing)
        _predicted(workload, trace, record.traffic, missing)
    missing["traffic.dram_bytes"] = _why_no_dram_bytes(workload, settings)
    if "flops" in settings.metrics:
        record.flops = measure_flops(workload, counts, missing)
    if "share" in settings.metrics:
        record.share = measure_share(workload, counts, missing)
    if record.provenance is not None:
        if counts is not None:
            record.provenance.backend = workload.implementation.backend(counts.operators)
        if record.provenance.backend is None:
            missing["provenance.backend"] = UNSEEN if counts is None else NO_BACKEND
        record.provenance.execution = "native" if trace is None else "interpreted"


def _why_no_dram_bytes(workload: Workload, settings: MeasureSettings) -> str:
    """Return what the record says until they are counted."""
    if workload.device.type != "cuda":
        return NO_COUNTERS
    return NOT_REACHED if "dram" in settings.metrics else NOT_ASKED


def _requested(
    workload: Workload, trace: KernelTrace | None, section: Traffic, missing: dict[str, str]
) -> None:
    """Fill in the bytes that kernels ask for: counted where they are interpreted, else in closed form."""
    if trace is not None:
        section.requested_bytes, section.requested_backend = trace.requested_bytes, INTERPRETER
        return
    closed_form = None
    if workload.level == "attention" and workload.problem.device == "cuda":
        closed_form = workload.implementation.cost(workload.problem).requested_bytes
    if closed_form is None:
        missing["traffic.requested_bytes"] = "only a kernel's own loads and stores can be counted"
        return
    section.requested_bytes, section.requested_backend = closed_form, "closed-form"


def _predicted(
    workload: Workload, trace: KernelTrace | None, section: Traffic, missing: dict[str, str]
) -> None:
    """Fill in what would cross the pins behind the reference cache, where every access is known."""
    if trace is None:
        why = "only an interpreter's trace of a kernel's own loads and stores can be put through the L2 model"
    elif workload.level != "attention":
        why = "the operators between the kernels use the cache as well, and are not traced"
    elif trace.programs_run < trace.programs_total:
        run, total = trace.programs_run, trace.programs_total
        why = f"the L2 model needs all accesses; {run} of {total} kernel programs were interpreted"
    else:
        section.predicted_dram_bytes, section.predicted_dram_backend = predict_dram(trace)
        return
    missing["traffic.predicted_dram_bytes"] = why


def fill_timed(
    workload: Workload,
    settings: MeasureSettings,
    record: Record,
    check: Check | str,
    checked: Tensor,
    first_call_s: float,
    ceilings: Ceilings | None = None,
) -> str | None:
    """Fill what is read from a clock, once the call, whose first time took ``first_call_s``, has been found
    right. A latency is held against the ``ceilings`` of the device, if they are known.

    Returns what is wrong if the last timed call no longer gives what the checked one did.
    """
    untimed = _why_untimed(workload)
    wrong = None
    if "latency" in settings.metrics:
        if untimed is None:
            wrong = _time(workload, settings, record, check, checked, ceilings)
            if record.latency is not None and (workload.opaque or workload.device.type == "cuda"):
                record.latency.compile_s = first_call_s
        else:
            record.unavailable["latency"] = record.unavailable["telemetry"] = untimed
    if wrong is None and record.share is not None:
        if untimed is None:
            record.share.latency_fraction = latency_fraction(workload, settings)
        else:
            record.unavailable["share.latency_fraction"] = untimed
    if wrong is None and "energy" in settings.metrics:
        if untimed is None:
            joules = measure_energy(workload, record.unavailable)
            if joules is not None:
                record.telemetry = record.telemetry or Telemetry()
                record.telemetry.energy_per_call_j = joules
        else:
            record.unavailable["telemetry.energy_per_call_j"] = untimed
    if wrong is None and "optimizer" in settings.metrics and has_step(workload):
        if untimed is None:
            record.optimizer_step = measure_optimizer(workload, settings, record.unavailable)
        else:
            record.unavailable["optimizer_step"] = untimed
    return wrong


def _why_untimed(workload: Workload) -> str | None:
    p = workload.problem
    if 0 in (p.batch, p.seqlen_q, p.seqlen_k):
        return "empty: there is nothing to compute"
    if workload.interpreted:
        return "runs under Triton's interpreter on the CPU: numbers and bytes, never a speed"
    return None


def _time(
    workload: Workload,
    settings: MeasureSettings,
    record: Record,
    check: Check | str,
    checked: Tensor,
    ceilings: Ceilings | None,
) -> str | None:
    measure = partial(measure_plausible_latency, record=record, ceilings=ceilings)
    try:
        record.latency, record.telemetry, last = time_and_keep(workload, settings, measure)
    except UnusableTimerError as error:
        record.unavailable["latency"] = f"{settings.timer}, the only timer that was asked for: {error}"
        return None
    say_what_one_launch_lacks(record)
    record.unavailable |= why_lacking(record.telemetry, workload.device)
    if workload.case.cache == "cold" and record.latency.cache == "warm":
        record.unavailable["latency.cold"] = "a CPU's caches stay as the call before left them"
    if isinstance(check, str):
        return None
    if record.agreement is not None and settings.launches > 1:
        record.agreement.out_crc32 = crc32_of(checked)
    return check.drift(checked, last) or check.written(workload)
