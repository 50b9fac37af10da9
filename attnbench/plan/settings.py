"""How a suite measures: its ``[measure]`` table as a frozen struct, the one place of these defaults."""

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from attnbench.contract.errors import UsageError

Metric = Literal[
    "latency",
    "memory",
    "traffic",
    "flops",
    "agreement",
    "share",
    "optimizer",
    "quality",
    "workspace",
    "energy",
    "dram",
]
METRICS: tuple[Metric, ...] = get_args(Metric)
GpuTimer = Literal["cupti-activity", "cuda-graph", "cuda-events"]
DramBackend = Literal["ncu", "cupti-pm", "rocprofv3", "nvml-gpm"]
ON_REQUEST: tuple[Metric, ...] = ("energy", "dram")
"""Measured only where a suite names them: each takes seconds a case, on a GPU."""

METRIC_SUMMARIES: dict[Metric, str] = {
    "latency": "time of one call in ms: median, p10, p90, 95 % interval over launches, every sample",
    "memory": "peak_bytes with inputs, peak_increment_bytes above them, measured and predicted; "
    "in mode decode state_bytes",
    "traffic": "compulsory, operand and requested bytes",
    "flops": "useful, dense and executed operations, exponentials",
    "agreement": "error against float64, within the budget of the baseline's own error",
    "share": "of time, memory and FLOPs of a block or a model, the part of its mixers",
    "optimizer": "time of the AdamW step behind a model's fwd_bwd, and the bytes that it keeps",
    "quality": "loss and perplexity of a preset with trained weights, on text it was never trained on",
    "workspace": "what operators allocate inside themselves, on a CPU, from a call of its own",
    "energy": "joules of one call on a GPU, from its counter over a second of calls or more; on request",
    "dram": "bytes that crossed the pins of a GPU's memory, by its counters; on request",
}


class MeasureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured for each case of a suite, and how long it may take.

    Agreement is checked before latency even when it is not among the metrics.
    """

    metrics: Annotated[
        tuple[Metric, ...], Meta(description=f"quantities to measure, a list of {', '.join(METRICS)}")
    ] = tuple(name for name in METRICS if name not in ON_REQUEST)
    case_timeout_s: Annotated[float, Meta(gt=0, description="seconds above 0 that a case may take")] = 120.0
    launches: Annotated[
        int, Meta(ge=1, description="processes that time each case, spread over the run, 1 or more")
    ] = 5
    latency_budget_s: Annotated[
        float, Meta(gt=0, description="seconds above 0 for a case's samples, all launches together")
    ] = 1.0
    warmup_s: Annotated[
        float, Meta(ge=0, description="seconds of calls before the samples of a launch, 0 or more")
    ] = 0.2
    min_samples: Annotated[
        int, Meta(ge=1, description="samples of a launch before its budget may end early, 1 or more")
    ] = 10
    seed: Annotated[int, Meta(ge=0, description="seed of every input and parameter, 0 or more")] = 42
    reference_rows: Annotated[
        int,
        Meta(ge=1, description="most query rows, and most keys, a head of the float64 reference, 1 or more"),
    ] = 256
    timer: Annotated[
        GpuTimer | None,
        Meta(description=f"the only timer of a latency on a GPU, one of {', '.join(get_args(GpuTimer))}"),
    ] = None
    dram_backend: Annotated[
        DramBackend | None,
        Meta(description=f"the only counter of DRAM bytes, one of {', '.join(get_args(DramBackend))}"),
    ] = None

    def __post_init__(self) -> None:
        """Refuse with a ``UsageError`` to measure nothing, or one thing twice."""
        if not self.metrics:
            raise UsageError(f"metrics is an empty list; there are {', '.join(METRICS)}")
        twice = sorted({name for name in self.metrics if self.metrics.count(name) > 1})
        if twice:
            raise UsageError(f"metrics names {', '.join(twice)} more than once")
