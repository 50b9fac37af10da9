"""Two ways to one number, side by side. In: runs, each with one way forced, and predictions. Out: pairs, and
their page in Markdown. A way that does not work has a reason in its place; no pair is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from attnbench.measure.cuda_memory import BACKEND as ALLOCATOR
from attnbench.measure.record import Record
from attnbench.render.numbers import ABSENT, format_bytes, format_ms
from attnbench.run.store import Run

L2_MODEL = "L2 model"
PREDICTION = "prediction"
NO_RECORD = "the run has no record of this case"


@dataclass(frozen=True)
class Figure:
    """What one way says, or why it says nothing."""

    backend: str
    value: float | None = None
    reason: str | None = None
    remark: str | None = None
    """What a reader of the value has to know."""


class Kind(NamedTuple):
    """What is compared: ``first / second`` is the ratio of a pair."""

    name: str
    title: str
    unit: Literal["bytes", "ms"]
    first: str
    second: str
    says: str


KINDS = (
    Kind(
        "dram-read",
        "Bytes read from memory: counted and modelled",
        "bytes",
        "ncu",
        L2_MODEL,
        "One call on a cold cache, one head. Reads alone: dirty lines may be written after the call. The "
        "model has the tiles of the CPU, on which kernels are interpreted.",
    ),
    Kind(
        "dram-total",
        "Bytes that crossed the pins: estimated and counted",
        "bytes",
        "nvml-gpm",
        "ncu",
        "The estimate is a mean over a second of calls in a row, reads and writes of the whole GPU.",
    ),
    Kind(
        "latency",
        "Latency: activity records and events",
        "ms",
        "cupti-activity",
        "cuda-events",
        "Medians over launches, of a cold cache. Events also see what lies between the host's launches.",
    ),
    Kind(
        "peak",
        "Peak memory: predicted and allocated",
        "bytes",
        PREDICTION,
        ALLOCATOR,
        "Lifetimes of fake tensors, against the caching allocator's peak in its blocks; inputs included.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One case, seen in two ways."""

    kind: str
    implementation: str
    seqlen: int
    case_id: str
    first: Figure
    second: Figure

    @property
    def ratio(self) -> float | None:
        """The first over the second, where both say something."""
        if self.first.value is None or not self.second.value:
            return None
        return self.first.value / self.second.value

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, the ratio in it."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True)
class Runs:
    """The runs behind a table, each with one timer and one counter of DRAM bytes forced."""

    traced: Run
    """Of cases small enough to be interpreted; counted by ncu."""
    counted: Run
    """Counted by ncu, timed by activity records, with their peaks."""
    estimated: Run
    """Of the same cases, by GPM and events."""

    def named(self) -> dict[str, Run]:
        """Return them by name."""
        return {"traced": self.traced, "counted": self.counted, "estimated": self.estimated}


def pairs_of(runs: Runs, models: Mapping[str, Figure]) -> list[Pair]:
    """Return four pairs for each planned case, kind by kind; ``models`` are of the traced ones, by id."""
    traced, counted, estimated = ({r.case_id: r for r in run.records} for run in runs.named().values())
    no_model = Figure(L2_MODEL, reason="nothing was predicted for this case")
    found = []
    for case_id, case in runs.traced.planned.items():
        first = dram(traced.get(case_id), "ncu", "dram_read_bytes")
        found.append(_pair("dram-read", case_id, case, first, models.get(case_id, no_model)))
    for case_id, case in runs.counted.planned.items():
        record, other = counted.get(case_id), estimated.get(case_id)
        by_gpm, by_ncu = dram(other, "nvml-gpm", "dram_bytes"), dram(record, "ncu", "dram_bytes")
        found += [
            _pair("dram-total", case_id, case, by_gpm, by_ncu),
            _pair("latency", case_id, case, latency(record, "cupti-activity"), latency(other, "cuda-events")),
            _pair("peak", case_id, case, predicted_peak(record), allocated_peak(record)),
        ]
    return found


def _pair(kind: str, case_id: str, case: Mapping[str, Any], first: Figure, second: Figure) -> Pair:
    return Pair(
        kind=kind,
        implementation=case["implementation"],
        seqlen=case["seqlen_k"],
        case_id=case_id,
        first=first,
        second=second,
    )


def dram(record: Record | None, backend: str, field: str) -> Figure:
    """Return what a counter says, or why it says nothing."""
    if record is None or record.status != "ok":
        return Figure(backend, reason=_failure(record))
    section = record.traffic
    value = None if section is None else getattr(section, field)
    if section is None or value is None:
        told = record.unavailable.get("traffic.dram_bytes")
        return Figure(backend, reason=_without(backend, told) or f"{backend} told no {field}")
    said = (section.dram_backend or "").removeprefix(backend).strip(" ()") or None
    doubt = section.dram_verdict if section.dram_verdict == "implausible" else None
    return Figure(backend, value, remark="; ".join(filter(None, (said, doubt))) or None)


def latency(record: Record | None, timer: str) -> Figure:
    """Return the median by a timer, with the verdict on it where there is one, or why there is none."""
    if record is None or record.status != "ok":
        return Figure(timer, reason=_failure(record))
    section = record.latency
    verdict = ", ".join((section and section.verdict) or ())
    if section is None or section.median_ms is None:
        return Figure(timer, reason=record.unavailable.get("latency") or verdict or "there is no latency")
    if section.timer != timer:
        return Figure(timer, reason=f"it was timed by {section.timer}")
    return Figure(timer, section.median_ms, remark=None if verdict == "valid" else verdict)


def predicted_peak(record: Record | None) -> Figure:
    """Return the prediction, also of a case that was not run because of it."""
    section = None if record is None else record.memory
    if section is not None and section.predicted_peak_bytes is not None:
        return Figure(PREDICTION, section.predicted_peak_bytes)
    told = None if record is None else record.unavailable.get("memory.predicted_peak_bytes")
    return Figure(PREDICTION, reason=told or _failure(record))


def allocated_peak(record: Record | None) -> Figure:
    """Return the allocator's peak."""
    if record is None or record.status != "ok":
        return Figure(ALLOCATOR, reason=_failure(record))
    section = record.memory
    if section is None or section.peak_bytes is None:
        return Figure(ALLOCATOR, reason=record.unavailable.get("memory.peak_bytes") or "it was not asked")
    if section.backend != ALLOCATOR:
        return Figure(ALLOCATOR, reason=f"the peak is that of {section.backend}")
    return Figure(ALLOCATOR, section.peak_bytes)


def _failure(record: Record | None) -> str:
    if record is None:
        return NO_RECORD
    return f"{record.status}: {record.reason}" if record.reason else "it was not measured"


def _without(backend: str, told: str | None) -> str | None:
    """A reason without the name that stands in front of it: the column says it."""
    return None if told is None else told.removeprefix(f"{backend}: ")


def document(device: str, runs: Runs, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return everything as plain data, with what it was measured on."""
    meta = runs.counted.meta
    named = ("environment", "versions", "revision", "command")
    of_run = ("started_utc", "finished_utc", "status", "measure", "isolate", "launches")
    return {
        "schema_version": 1,
        "device": device,
        **{key: meta.get(key) for key in named},
        "runs": {
            name: {key: run.meta.get(key) for key in of_run if key in run.meta}
            for name, run in runs.named().items()
        },
        "kinds": [kind._asdict() for kind in KINDS],
        "pairs": [pair.to_dict() for pair in pairs],
    }


def page(device: str, runs: Runs, pairs: Sequence[Pair]) -> str:
    """Return the table of each kind as Markdown."""
    lines = [f"# Two ways to one number: {device}", "", _circumstances(device, runs.counted.meta)]
    for kind in KINDS:
        lines += ["", f"## {kind.title}", "", kind.says, "", *_table(kind, pairs)]
    return "\n".join(lines) + "\n"


def _table(kind: Kind, pairs: Iterable[Pair]) -> list[str]:
    heads = ("implementation", "seqlen", kind.first, kind.second, "ratio", "remarks")
    rows = [heads, ("---", "---:", "---:", "---:", "---:", "---")]
    for pair in pairs:
        if pair.kind == kind.name:
            ratio = ABSENT if pair.ratio is None else f"{pair.ratio:.3f}"
            figures = [_shown(kind, figure) for figure in (pair.first, pair.second)]
            remarks = _remarks(pair).replace("|", "\\|")
            rows.append((pair.implementation, str(pair.seqlen), figures[0], figures[1], ratio, remarks))
    return [f"| {' | '.join(cells)} |" for cells in rows]


def _shown(kind: Kind, figure: Figure) -> str:
    if figure.value is None:
        return ABSENT
    return format_ms(figure.value) if kind.unit == "ms" else format_bytes(figure.value)


def _remarks(pair: Pair) -> str:
    said = [(figure.backend, figure.reason or figure.remark) for figure in (pair.first, pair.second)]
    return "; ".join(f"{backend}: {words}" for backend, words in said if words)


def _circumstances(device: str, meta: Mapping[str, Any]) -> str:
    gpus = meta.get("environment", {}).get("gpus", [])
    driver = next((gpu["facts"].get("driver") for gpu in gpus if gpu.get("name") == device), None)
    versions = meta.get("versions", {})
    words = [f"{name} {versions[name]}" for name in ("attnbench", "torch", "triton") if versions.get(name)]
    when = meta.get("started_utc")
    return f"{when}, driver {driver or 'unknown'}, {', '.join(words)}. All of it: `pairs.json`."
