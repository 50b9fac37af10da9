"""A record's sections, each where it was asked for and can be had. In: a workload, counted and checked.

What cannot be had is named in the record, with the reason.
"""

import dataclasses

from torch import Tensor

from attnbench.plan.settings import MeasureSettings

from .checking import Check
from .counting import UNSEEN, Counts
from .energy import measure_energy
from .flops import measure_flops
from .interpreter import BACKEND as INTERPRETER
from .interpreter import KernelTrace
from .latency import measure_latency
from .memory import measure_memory
from .optimizer import has_step, measure_optimizer
from .record import Record, Telemetry, Traffic
from .share import latency_fraction, measure_share
from .traffic import measure_traffic
from .workload import Outputs, Workload


def fill_counted(
    workload: Workload,
    settings: MeasureSettings,
    counts: Counts | None,
    predicted: Counts | None,
    trace: KernelTrace | None,
    record: Record,
) -> None:
    """Fill memory, traffic, FLOPs and provenance from the first call; ``counts`` is None if compiled."""
    missing = record.unavailable
    if "memory" in settings.metrics:
        record.memory = measure_memory(workload, counts, predicted, missing)
        missing["memory.hidden_workspace_bytes"] = "what a kernel allocates inside itself is not seen"
        if record.memory.process_bytes is None:
            missing.setdefault("memory.process_bytes", "the process holds more than one case")
        if record.memory.peak_bytes is None:
            missing["memory.peak_bytes"] = missing["memory.peak_increment_bytes"] = UNSEEN
        if record.memory.reserved_bytes is None:
            why = "the CPU has no caching allocator"
            missing["memory.reserved_bytes"] = missing["memory.requested_peak_bytes"] = why
    if "traffic" in settings.metrics:
        record.traffic = measure_traffic(workload, counts, missing)
        _requested(workload, trace, record.traffic, missing)
        missing["traffic.dram_bytes"] = "needs the hardware counters of a GPU"
    if "flops" in settings.metrics:
        record.flops = measure_flops(workload, counts, missing)
    if "share" in settings.metrics:
        record.share = measure_share(workload, counts, missing)
    if record.provenance is not None:
        if counts is not None:
            record.provenance.backend = workload.implementation.backend(counts.operators)
        record.provenance.execution = "native" if trace is None else "interpreted"


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


def fill_timed(
    workload: Workload,
    settings: MeasureSettings,
    record: Record,
    check: Check | str,
    checked: Tensor,
    first_call_s: float,
) -> str | None:
    """Fill what is read from a clock, once the call, whose first time took ``first_call_s``, has been found
    right.

    Returns what is wrong if the last timed call no longer gives what the checked one did.
    """
    untimed = _why_untimed(workload)
    wrong = None
    if "latency" in settings.metrics:
        if untimed is None:
            wrong = _time(workload, settings, record, check, checked)
            if record.latency is not None and (workload.opaque or workload.device.type == "cuda"):
                record.latency.compile_s = first_call_s
        else:
            record.unavailable["latency"] = untimed
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
            record.optimizer_step = measure_optimizer(workload, settings)
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
    workload: Workload, settings: MeasureSettings, record: Record, check: Check | str, checked: Tensor
) -> str | None:
    last: list[Tensor] = []

    def keeping() -> Outputs:
        outputs = workload.call()
        last[:] = [outputs.out]
        return outputs

    timed = dataclasses.replace(workload, call=keeping)
    record.latency, record.telemetry = measure_latency(timed, settings, unavailable=record.unavailable)
    if workload.case.cache == "cold" and record.latency.cache == "warm":
        record.unavailable["latency.cold"] = "a CPU's caches stay as the call before left them"
    return None if isinstance(check, str) else check.drift(checked, last[0]) or check.written(workload)
