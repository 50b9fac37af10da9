"""The quantities that are drawn against the sequence length, as data. Which field, which unit, which
companions.
"""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["ms", "bytes", "number", "fraction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity of a case. Field names are those of `CaseRow`; an empty name means there is none."""

    key: str
    title: str
    axis: str
    """What the axis says, without the unit."""
    unit: Unit
    value: str
    record_field: tuple[str, str]
    """Section and field of the record, under which the reason for an absence is filed."""
    low: str = ""
    high: str = ""
    """The 95 % interval."""
    expected: str = ""
    """What was predicted before running: known even where the case failed."""
    limit: str = ""
    """What the value must stay below."""
    floor: str = ""
    """What no implementation can go below."""
    theory: str = ""
    """The quantity of `CaseRow.theory` that should grow as this one does."""
    counted: bool = False
    """Whether it is counted, without noise: it then equals its theory, or one of the two is wrong."""
    judged: bool = False
    """Whether the verdicts of a latency are about it."""
    axis_decode: str = ""
    """What the axis says in mode ``decode``, where that differs."""
    levels: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    """Where it can be had at all; empty means everywhere."""
    optional: bool = False
    """Whether suites may leave it unasked: a curve without any value and without a reason is left out."""
    kernels_only: bool = False
    """Whether only some implementations have it by nature; the others are then not listed as lacking it."""


LATENCY = Metric(
    key="latency",
    title="Latency",
    axis="latency, median",
    unit="ms",
    value="latency_ms",
    record_field=("latency", "median_ms"),
    low="latency_low_ms",
    high="latency_high_ms",
    theory="executed_flops",
    judged=True,
    axis_decode="latency of one token, median",
)
PEAK_MEMORY = Metric(
    key="peak-memory",
    title="Peak memory",
    axis="peak memory",
    unit="bytes",
    value="peak_bytes",
    record_field=("memory", "peak_bytes"),
    expected="predicted_peak_bytes",
    theory="peak_bytes",
    counted=True,
)
OPERAND_BYTES = Metric(
    key="operand-bytes",
    title="Operand bytes",
    axis="operand bytes",
    unit="bytes",
    value="operand_bytes",
    record_field=("traffic", "operand_bytes"),
    floor="compulsory_bytes",
    theory="operand_bytes",
    counted=True,
)
REQUESTED_BYTES = Metric(
    key="requested-bytes",
    title="Requested bytes",
    axis="requested bytes",
    unit="bytes",
    value="requested_bytes",
    record_field=("traffic", "requested_bytes"),
    floor="compulsory_bytes",
    theory="requested_bytes",
    counted=True,
    kernels_only=True,
)
DRAM_BYTES = Metric(
    key="dram-bytes",
    title="DRAM bytes",
    axis="DRAM bytes",
    unit="bytes",
    value="dram_bytes",
    record_field=("traffic", "dram_bytes"),
    floor="compulsory_bytes",
    optional=True,
)
FLOPS = Metric(
    key="flops",
    title="FLOPs",
    axis="FLOPs executed",
    unit="number",
    value="executed_flops",
    record_field=("flops", "executed"),
    theory="executed_flops",
    counted=True,
    optional=True,
)
ERROR = Metric(
    key="error",
    title="Error",
    axis="largest absolute error",
    unit="number",
    value="max_abs_error",
    record_field=("agreement", "max_abs_error"),
    limit="error_budget",
)
RELATIVE_ERROR = Metric(
    key="relative-error",
    title="Relative error",
    axis="relative error, root mean square",
    unit="number",
    value="rms_relative_error",
    record_field=("agreement", "rms_relative_error"),
    limit="rms_budget",
)
BUDGET_SHARE = Metric(
    key="budget-share",
    title="Share of the error budget",
    axis="used of the error budget",
    unit="fraction",
    value="budget_share",
    record_field=("agreement", "budget_used"),
)
STATE_MEMORY = Metric(
    key="state-memory",
    title="State memory",
    axis="state memory",
    unit="bytes",
    value="state_bytes",
    record_field=("memory", "state_bytes"),
    modes=("decode",),
    optional=True,
)
LATENCY_SHARE, MEMORY_SHARE, FLOPS_SHARE = SHARES = tuple(
    Metric(
        key=f"{name}-share",
        title=f"Share of {what}",
        axis=f"attention's share of {what}",
        unit="fraction",
        value=f"{name}_share",
        record_field=("share", f"{name}_fraction"),
        levels=("block", "model"),
        optional=True,
        judged=name == "latency",
    )
    for name, what in (("latency", "time"), ("memory", "memory"), ("flops", "FLOPs"))
)
METRICS = (
    LATENCY,
    PEAK_MEMORY,
    STATE_MEMORY,
    *SHARES,
    OPERAND_BYTES,
    REQUESTED_BYTES,
    DRAM_BYTES,
    FLOPS,
    ERROR,
    RELATIVE_ERROR,
    BUDGET_SHARE,
)
