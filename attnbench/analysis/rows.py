"""One flat row a case. In: the records of runs. Out: `CaseRow`, whose numbers are finite or None and whose
text is printable.

Records may be foreign, so this is the one place where they are distrusted: what is not a finite number of the
right sign becomes None, and control characters become visible marks. Everything after this file may rely on
it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnbench.measure.record import (
    Agreement,
    Flops,
    Latency,
    Memory,
    OptimizerStep,
    Provenance,
    Quality,
    Record,
    Share,
    Telemetry,
    Traffic,
)
from attnbench.run.store import Run

OK = "ok"
USUAL = {"inputs": "normal", "cache": "cold", "compile": False}
"""Values of case keys that go without saying."""
SAID_ELSEWHERE = frozenset({
    "implementation", "options", "level", "preset", "architecture", "checkpoint", "mode", "mask",
    "dtype", "device", "seqlen_q", "seqlen_k", "batch", "num_heads", "num_kv_heads", "head_dim", "head_dim_v",
})  # fmt: skip
ABSURD = 1e30
"""No time in ms, no count and no error is as large."""
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow:
    """What one case says, flat. A number that the record lacks is None, and `absent` says why where the
    record does.
    """

    run: str
    run_label: str
    """The run where several are side by side, else empty."""
    case_id: str
    implementation: str
    options: str
    """Of the implementation, and ``checkpoint`` where activations are."""
    level: str
    preset: str
    architecture: str
    """Of the model at levels ``block`` and ``model``; empty elsewhere, and where the record does not say."""
    mode: str
    mask: str
    window: int | None
    """Keys that a window of the mask lets a query see; None without one."""
    dtype: str
    device: str
    seqlen: int
    """Keys of the problem, in ``decode`` the context: the x axis of every plot."""
    seqlen_q: int
    batch: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    extras: str
    """Every other case key that is not at its usual value."""
    status: str
    reason: str
    latency_ms: float | None = None
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    """The 95 % interval over launches; with one launch that of its samples."""
    one_launch: bool = False
    """Whether the interval is that of the samples of one launch."""
    latency_verdict: tuple[str, ...] = ()
    launches: int | None = None
    sm_clock_mhz: float | None = None
    usual_sm_clock_mhz: float | None = None
    """Of the run, by `clocks.py`."""
    peak_bytes: int | None = None
    peak_increment_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    state_bytes: int | None = None
    compulsory_bytes: int | None = None
    operand_bytes: int | None = None
    requested_bytes: int | None = None
    dram_bytes: int | None = None
    useful_flops: int | None = None
    exponentials: int | None = None
    executed_flops: int | None = None
    max_abs_error: float | None = None
    error_budget: float | None = None
    budget_used: float | None = None
    rms_relative_error: float | None = None
    rms_budget: float | None = None
    budget_share: float | None = None
    """The most that any compared tensor used of its own budget: out, lse, a gradient."""
    softmax_distance: float | None = None
    loss: float | None = None
    perplexity: float | None = None
    latency_share: float | None = None
    memory_share: float | None = None
    flops_share: float | None = None
    optimizer_ms: float | None = None
    optimizer_state_bytes: int | None = None
    semantics: str = ""
    """The function that is computed, by name; empty where the record does not say."""
    cross_implementation: str = ""
    execution: str = ""
    threads: int | None = None
    """Of the process that timed it, on a CPU."""
    reduced: str = ""
    """What was cut so that the case could be checked, in words."""
    reproduce: str = ""
    theory: Mapping[str, int] = field(default_factory=dict)
    """What formulas say of the case, by the quantity's name."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Section or field name -> why it could not be had."""

    @property
    def is_ok(self) -> bool:
        """Whether the case ran and its result was right."""
        return self.status == OK

    def why_absent(self, section: str, name: str) -> str:
        """Return why ``section.name`` could not be had, or an empty string."""
        keys = (f"{section}.{name}", name, section)
        return next((self.absent[key] for key in keys if key in self.absent), "")


def rows_of(runs: Mapping[str, Run]) -> list[CaseRow]:
    """Return one row a case, in the order of the runs and of their records; the keys of ``runs`` become
    `CaseRow.run`.
    """
    several = len(runs) > 1
    return [_row(clean_text(label), several, record) for label, run in runs.items() for record in run.records]


def clean_text(value: object) -> str:
    """Return ``value`` as text in which control and direction-changing characters are the mark U+FFFD."""
    return "" if value is None else UNPRINTABLE.sub("\ufffd", str(value))


def _row(run: str, several: bool, record: Record) -> CaseRow:
    case = record.case
    latency = record.latency or Latency()
    memory = record.memory or Memory()
    traffic = record.traffic or Traffic()
    flops = record.flops or Flops()
    share = record.share or Share()
    step = record.optimizer_step or OptimizerStep()
    quality = record.quality or Quality()
    flops = record.flops or Flops()
    agreement = record.agreement or Agreement()
    low_ms, high_ms, one_launch = _interval(latency)
    provenance = record.provenance or Provenance()
    seqlen_q = _whole(case.get("seqlen_q")) or 0
    seqlen_k = _whole(case.get("seqlen_k"))
    seqlen = seqlen_q if seqlen_k is None else seqlen_k
    return CaseRow(
        run=run,
        run_label=run if several else "",
        case_id=clean_text(record.case_id),
        implementation=clean_text(case.get("implementation")),
        options=_options(case),
        level=clean_text(case.get("level")),
        preset=clean_text(case.get("preset")),
        architecture=clean_text(provenance.architecture or case.get("architecture")),
        mode=clean_text(case.get("mode")),
        mask=mask_words(case.get("mask")),
        window=_window(case.get("mask")),
        dtype=clean_text(case.get("dtype")),
        device=clean_text(case.get("device")),
        seqlen=seqlen,
        seqlen_q=seqlen_q,
        batch=_whole(case.get("batch")) or 0,
        num_heads=_whole(case.get("num_heads")) or 0,
        num_kv_heads=_whole(case.get("num_kv_heads")) or 0,
        head_dim=_whole(case.get("head_dim")) or 0,
        head_dim_v=_whole(case.get("head_dim_v")) or 0,
        extras=_extras(case, seqlen_q, seqlen),
        status=clean_text(record.status),
        reason=clean_text(record.reason),
        latency_ms=positive_number(latency.median_ms),
        latency_low_ms=low_ms,
        latency_high_ms=high_ms,
        one_launch=one_launch,
        latency_verdict=tuple(clean_text(word) for word in latency.verdict or ()),
        launches=_whole(latency.launches),
        sm_clock_mhz=positive_number((record.telemetry or Telemetry()).sm_clock_mhz),
        peak_bytes=_whole(memory.peak_bytes),
        peak_increment_bytes=_whole(memory.peak_increment_bytes),
        predicted_peak_bytes=_whole(memory.predicted_peak_bytes),
        state_bytes=_whole(memory.state_bytes),
        compulsory_bytes=_whole(traffic.compulsory_bytes),
        operand_bytes=_whole(traffic.operand_bytes),
        requested_bytes=_whole(traffic.requested_bytes),
        dram_bytes=_whole(traffic.dram_bytes),
        useful_flops=_whole(flops.useful),
        exponentials=_whole(flops.exponentials),
        executed_flops=_whole(flops.executed),
        max_abs_error=_not_negative(agreement.max_abs_error),
        error_budget=_not_negative(agreement.budget),
        budget_used=_not_negative(agreement.budget_used),
        rms_relative_error=_not_negative(agreement.rms_relative_error),
        rms_budget=_not_negative(agreement.rms_budget),
        budget_share=_budget_share(agreement),
        softmax_distance=_not_negative(agreement.softmax_distance),
        loss=_number(quality.loss),
        perplexity=positive_number(quality.perplexity),
        latency_share=_not_negative(share.latency_fraction),
        memory_share=_not_negative(share.memory_fraction),
        flops_share=_not_negative(share.flops_fraction),
        optimizer_ms=positive_number(step.median_ms),
        optimizer_state_bytes=_whole(step.state_bytes),
        semantics=clean_text(provenance.semantics),
        cross_implementation=clean_text(provenance.cross_implementation),
        execution=clean_text(provenance.execution),
        threads=_whole(provenance.threads),
        reduced=clean_text(provenance.reduced),
        reproduce=clean_text(provenance.reproduce),
        theory={
            clean_text(key): count
            for key, value in (record.theory or {}).items()
            if (count := _whole(value)) is not None
        },
        absent={clean_text(key): clean_text(why) for key, why in record.unavailable.items()},
    )


def _budget_share(agreement: Agreement) -> float | None:
    gradients = [*(agreement.gradients or {}).values(), *(agreement.columns or {}).values()]
    parts = [agreement, agreement.lse, *gradients]
    shares = [_not_negative(part.budget_used) for part in parts if part is not None]
    return max((share for share in shares if share is not None), default=None)


def _interval(latency: Latency) -> tuple[float | None, float | None, bool]:
    """Return the interval to show, and whether it is of one launch alone; records that are older than
    launches hold that one under the name of the other.
    """
    outer = positive_number(latency.ci95_low_ms), positive_number(latency.ci95_high_ms)
    inner = positive_number(latency.inner_ci95_low_ms), positive_number(latency.inner_ci95_high_ms)
    low_ms, high_ms = inner if None in outer else outer
    within = (_whole(latency.launches) or 1) < 2 or None in outer
    return low_ms, high_ms, within and low_ms is not None and high_ms is not None


def mask_words(mask: object) -> str:
    """Return a mask as people say it: ``causal``, ``window 256``, ``window 256 both sides``."""
    if not isinstance(mask, Mapping):
        return clean_text(mask)
    values = {clean_text(key): clean_text(value) for key, value in mask.items() if key != "name"}
    if mask.get("name") == "sliding-window":
        sides = "" if mask.get("causal", True) else " both sides"
        return f"window {values.get('window_size', '')}{sides}"
    return " ".join([clean_text(mask.get("name")), *(f"{key}={value}" for key, value in values.items())])


def _window(mask: object) -> int | None:
    return _whole(mask.get("window_size")) if isinstance(mask, Mapping) else None


def _options(case: Mapping[str, Any]) -> str:
    """Return how the implementation is used; activation checkpointing is compared with doing without, like an
    option.
    """
    checkpoint = "checkpoint" if case.get("checkpoint") is True else ""
    return ", ".join(filter(None, (_pairs(case.get("options")), checkpoint)))


def _extras(case: Mapping[str, Any], seqlen_q: int, seqlen: int) -> str:
    said = {
        key: value
        for key, value in case.items()
        if key not in SAID_ELSEWHERE and value not in (None, "", [], {}) and USUAL.get(key) != value
    }
    if seqlen_q != (1 if case.get("mode") == "decode" else seqlen):
        said = {"seqlen_q": seqlen_q, **said}
    return _pairs(said)


def _pairs(values: Iterable[Any] | None) -> str:
    """Return options in words; ``return_lse`` asks for one more output and makes no other implementation."""
    items = values.items() if isinstance(values, Mapping) else ()
    return ", ".join(f"{clean_text(key)}={clean_text(value)}" for key, value in items if key != "return_lse")


def _number(value: object) -> float | None:
    """Return a float that a measurement can be; None for what no axis and no sum could hold, too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -ABSURD < value < ABSURD else None


def positive_number(value: object) -> float | None:
    """Return a finite number above 0, or None for anything else."""
    number = _number(value)
    return number if number is not None and number > 0 else None


def _not_negative(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _whole(value: object) -> int | None:
    """Return a count as an exact int: byte counts beyond 2**53 must not pass through a float."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 0 else None
    number = _not_negative(value)
    return None if number is None else round(number)
