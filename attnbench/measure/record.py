"""What one case leaves behind: a record of plain data, one section per quantity. Loads no torch; unknown
quantities are left out.

Field names are read by other programs: they are added, never renamed. Units stand in the names.
"""

from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1

Status = Literal["ok", "unsupported", "incorrect", "oom", "timeout", "crashed", "error"]
FAILURES: tuple[Status, ...] = ("incorrect", "timeout", "crashed", "error")
"""Statuses that make a run exit with 1; `unsupported` and `oom` are findings."""


REASON_CHARACTERS = 500


def one_line(text: str) -> str:
    """Return foreign text as one line that a terminal can print.

    No control characters, and not without end.
    """
    plain = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * REASON_CHARACTERS]).split())
    return plain if len(plain) <= REASON_CHARACTERS else f"{plain[:REASON_CHARACTERS]} …"


class Section(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Base of all sections: what could not be had is absent, and named in the record's ``unavailable``."""


class Latency(Section):
    """Time of one call, from ``launches`` processes that each timed it.

    ``launches.py`` beside this file has the formulas.
    """

    median_ms: float | None = None
    """Median of ``launch_medians_ms``."""
    p10_ms: float | None = None
    p90_ms: float | None = None
    """Of all samples."""
    ci95_low_ms: float | None = None
    ci95_high_ms: float | None = None
    """Student's t over the logarithms of ``launch_medians_ms``; absent with fewer than two of them."""
    inner_ci95_low_ms: float | None = None
    inner_ci95_high_ms: float | None = None
    """Distribution-free interval of the median of all samples, as if they were independent."""
    launch_medians_ms: list[float] | None = None
    samples_ms: list[float] | None = None
    """Every sample of every launch, in the order in which they were taken."""
    samples_per_launch: list[int] | None = None
    launches: int | None = None
    timer: str | None = None
    cache: str | None = None
    verdict: list[str] | None = None
    compile_s: float | None = None
    floor_ms: float | None = None
    """What the measured ceilings of the device need for the least that the call must do."""
    implausible: str | None = None
    """Why the verdict says so: the arithmetic, in words."""


class Memory(Section):
    """Bytes held at the peak of one call."""

    peak_bytes: int | None = None
    peak_increment_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    predicted_peak_backend: str | None = None
    requested_peak_bytes: int | None = None
    """As the allocator was asked for them, before it rounds each up to its blocks; so is the increment."""
    requested_increment_bytes: int | None = None
    reserved_bytes: int | None = None
    hidden_workspace_bytes: int | None = None
    process_bytes: int | None = None
    state_bytes: int | None = None
    backend: str | None = None


class Traffic(Section):
    """Four kinds of bytes that are never mixed; each but the first names what supplied it."""

    compulsory_bytes: int | None = None
    operand_bytes: int | None = None
    operand_backend: str | None = None
    requested_bytes: int | None = None
    requested_backend: str | None = None
    dram_bytes: int | None = None
    dram_backend: str | None = None
    dram_read_bytes: int | None = None
    dram_write_bytes: int | None = None
    dram_kernels: list[dict[str, Any]] | None = None
    """The same of each kernel: ``kernel``, ``bytes``, ``read_bytes``, ``write_bytes``."""
    dram_verdict: str | None = None
    """``valid``, ``estimate``, or ``implausible``: fewer bytes read than are compulsory."""
    predicted_dram_bytes: int | None = None
    """Of a model of a cache, which the backend names: not measured, and none of the four kinds."""
    predicted_dram_backend: str | None = None


class Flops(Section):
    """``useful``: visible pairs; ``dense``: all pairs; ``executed``: what was performed.

    Exponentials apart.
    """

    useful: int | None = None
    dense: int | None = None
    executed: int | None = None
    exponentials: int | None = None


class Error(Section):
    """Distance of one tensor to the float64 truth and what it was allowed to be.

    ``budget_used`` is the larger share of the two rules.
    """

    max_abs_error: float | None = None
    rms_relative_error: float | None = None
    budget: float | None = None
    rms_budget: float | None = None
    budget_used: float | None = None
    nonfinite: int | None = None
    nonfinite_reference: int | None = None
    verdict: str | None = None


class Agreement(Error):
    """The same for the output, with ``lse`` and every gradient below it."""

    lse: Error | None = None
    gradients: dict[str, Error] | None = None
    softmax_distance: float | None = None
    inputs: str | None = None
    rows_checked: int | None = None
    columns: dict[str, Error] | None = None
    """``dk`` and ``dv`` of sampled keys under the whole upstream gradient, where rows were sampled."""
    columns_checked: int | None = None
    """Keys, over batch and heads, whose gradients were compared with every query adding to them."""
    float32: Error | None = None
    """The same problem in float32, for a 16-bit case."""
    out_crc32: int | None = None
    """CRC-32 of the bytes of the output that was graded; later launches are held to it."""
    programs: str | None = None
    """For interpreted kernels: how many programs of the launch were run."""


class Share(Section):
    """What part of a block or model is its mixers': self- and cross-attention with their projections.

    Of the time of a call, of its FLOPs, and of its memory: the peak of what mixers make over that of all that
    the call makes.
    """

    latency_fraction: float | None = None
    memory_fraction: float | None = None
    flops_fraction: float | None = None


class OptimizerStep(Section):
    """The step that follows a model's ``fwd_bwd``: its time, and the bytes that the optimiser keeps."""

    name: str | None = None
    median_ms: float | None = None
    ci95_low_ms: float | None = None
    ci95_high_ms: float | None = None
    state_bytes: int | None = None
    timer: str | None = None


class Quality(Section):
    """How well a trained model predicts: ``loss`` in nats per predicted token, ``perplexity`` its ``exp``."""

    loss: float | None = None
    perplexity: float | None = None
    tokens: int | None = None
    text_hash: str | None = None


class Telemetry(Section):
    """What the machine did meanwhile: a GPU between its warm-up and the last sample."""

    sm_clock_mhz: float | None = None
    sm_clock_start_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: list[str] | None = None
    energy_per_call_j: float | None = None
    other_processes: int | None = None
    context_switches: int | None = None
    foreign_cpu_s: float | None = None


class Provenance(Section):
    """What ran, from which source, and how to run it again."""

    architecture: str | None = None
    """Of the model, at levels ``block`` and ``model``: its preset's, or what the case made of it."""
    semantics: str | None = None
    """The function that the implementation computes, by name: ``softmax``, ..."""
    kernels: list[str] | None = None
    """Kernels of the implementation's own; empty where operators of PyTorch do the work."""
    backend: str | None = None
    autotune: dict[str, Any] | None = None
    """What the kernels of each attention were launched with, from the table or from a search; empty where
    nothing is chosen."""
    cross_implementation: str | None = None
    source_hash: str | None = None
    seed: int | None = None
    threads: int | None = None
    cores: str | None = None
    """Those that the process was allowed to run on, as the kernel lists them: ``0-3,8``."""
    started_utc: str | None = None
    reproduce: str | None = None
    execution: str | None = None
    dram_passed_over: dict[str, str] | None = None
    """The backends of DRAM bytes that come before the one that was used, with the reason why not they."""
    work_s: float | None = None
    """Seconds, of all launches, in which something was timed, counted or checked."""
    reduced: str | None = None
    """What was cut so that the case could be checked here (rows, programs), in words."""


class Record(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One case and all that is known of it."""

    case_id: str
    case: dict[str, Any]
    status: Status
    schema_version: int | None = SCHEMA_VERSION
    reason: str | None = None
    unavailable: dict[str, str] = msgspec.field(default_factory=dict)
    latency: Latency | None = None
    memory: Memory | None = None
    traffic: Traffic | None = None
    flops: Flops | None = None
    agreement: Agreement | None = None
    share: Share | None = None
    optimizer_step: OptimizerStep | None = None
    quality: Quality | None = None
    kernels: list[dict[str, Any]] | None = None
    theory: dict[str, int] | None = None
    telemetry: Telemetry | None = None
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        """Hold the two rules that keep a table honest: every failure says why, and a failure has no speed."""
        self.reason = None if self.reason is None else one_line(self.reason)
        if self.status != "ok":
            self.forget_speed()
            if not self.reason:
                raise ValueError(f"a record that is {self.status!r} needs a reason")

    def forget_speed(self) -> None:
        """Drop every time that was measured."""
        self.latency = self.optimizer_step = None
        if self.share is not None:
            self.share.latency_fraction = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the schema version always in it."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema_version": self.schema_version, **plain}


def record_from_dict(plain: dict[str, Any]) -> Record:
    """Return the record that ``to_dict`` made plain; fields of newer versions are ignored.

    Raises:
        msgspec.ValidationError: a field has the wrong type.
    """
    return msgspec.convert(plain, Record)
