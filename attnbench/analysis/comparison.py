"""Records held against published numbers. In: rows, the names of their devices. Out: `Comparison`s.

A case matches a table that names the same device, shape, mode, mask and dtype, at the lengths that both have.
Rates become times by the FLOPs that the source counts, so that one ratio, measured over published, says how
many times as long it took here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnbench.analysis.facets import Facet, facets_of
from attnbench.analysis.metrics import LATENCY, Metric
from attnbench.analysis.published import PublishedTable
from attnbench.analysis.rows import CaseRow, clean_text
from attnbench.analysis.series import Panel, PublishedCurve, series_of
from attnbench.run.store import Run

GB = 1e9
DRAM_BYTES = Metric(
    key="dram-bytes",
    title="DRAM bytes",
    axis="DRAM bytes",
    unit="bytes",
    value="dram_bytes",
    record_field=("traffic", "dram_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPoint:
    """One length: milliseconds, or bytes of device memory."""

    seqlen: int
    measured: float
    published: float

    @property
    def ratio(self) -> float:
        """Measured over published."""
        return self.measured / self.published


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One measured curve beside one published series."""

    facet: Facet
    label: str
    """Of the measured curve."""
    name: str
    """Of the published series."""
    table: PublishedTable
    points: tuple[ComparedPoint, ...]
    """Shortest length first."""


def compare_with_published(
    rows: Sequence[CaseRow], devices: Mapping[str, str], tables: Iterable[PublishedTable]
) -> list[Comparison]:
    """Return every comparison that can be made.

    Args:
        rows: of one report.
        devices: the GPU's name by ``CaseRow.run``; runs without one match nothing.
        tables: published ones. Where a source prints times and rates of the same, the times are taken.
    """
    present = {_plain(name) for name in devices.values()}
    usable = [
        table for table in tables if table.has_shape and present.intersection(map(_plain, table.device_names))
    ]
    found: dict[tuple[Any, ...], Comparison] = {}
    for facet, members in facets_of(rows).items() if usable else ():
        for table in usable:
            matching = [row for row in members if _matches(row, devices.get(row.run, ""), table)]
            if not matching:
                continue
            for comparison in _comparisons(facet, matching, table):
                key = (facet, comparison.label, comparison.name, table.source, _kind(table))
                if key not in found or found[key].table.quantity == "rate":
                    found[key] = comparison
    return list(found.values())


def published_curves(panel: Panel, comparisons: Iterable[Comparison]) -> tuple[PublishedCurve, ...]:
    """Return the published times for the cases of a panel, each series once."""
    found: dict[str, dict[int, float]] = {}
    timed = [one for one in comparisons if one.table.quantity in ("rate", "latency")]
    sources: dict[str, set[str]] = {}
    for one in timed:
        sources.setdefault(one.name, set()).add(one.table.source)
    for one in timed:
        told = f" ({one.table.source.split(', ')[0]})" if len(sources[one.name]) > 1 else ""
        points = found.setdefault(f"{one.name}{told}", {})
        if one.facet.mask in panel.masks and replace(one.facet, mask=panel.facet.mask) == panel.facet:
            points.update((point.seqlen, point.published) for point in one.points)
    return tuple(
        PublishedCurve(label=label, place=place, points=tuple(sorted(points.items())))
        for place, (label, points) in enumerate(found.items())
        if points
    )


def gpu_name(run: Run) -> str:
    """Return the GPU that a run's cases used: the one whose ceilings were measured, or the only kind."""
    ceilings = run.meta.get("ceilings")
    measured = ceilings.get("cuda") if isinstance(ceilings, Mapping) else None
    if isinstance(measured, Mapping) and measured.get("name"):
        return clean_text(measured["name"])
    environment = run.meta.get("environment")
    gpus = environment.get("gpus") if isinstance(environment, Mapping) else None
    listed = gpus if isinstance(gpus, list) else []
    names = {clean_text(gpu.get("name")) for gpu in listed if isinstance(gpu, Mapping)}
    return names.pop() if len(names) == 1 else ""


def _matches(row: CaseRow, device: str, table: PublishedTable) -> bool:
    t = table
    return (
        row.device == "cuda"
        and row.level == "attention"
        and _plain(device) in map(_plain, t.device_names)
        and row.seqlen in t.seqlen
        and row.batch == t.rows(row.seqlen)
        and (row.mode, row.mask, row.dtype) == (t.mode, t.mask, t.dtype)
        and (row.num_heads, row.num_kv_heads) == (t.num_heads, t.num_kv_heads or t.num_heads)
        and row.head_dim == row.head_dim_v == t.head_dim
        and row.extras == ""
    )


def _comparisons(facet: Facet, rows: Sequence[CaseRow], table: PublishedTable) -> Iterator[Comparison]:
    measured = _measured(rows, table)
    for label, values in measured.items():
        for name in table.values:
            published = dict(zip(table.seqlen, _published(table, name), strict=True))
            points = [
                ComparedPoint(seqlen=seqlen, measured=values[seqlen], published=number)
                for seqlen, number in published.items()
                if number is not None and seqlen in values
            ]
            if points:
                yield Comparison(facet=facet, label=label, name=name, table=table, points=tuple(points))


def _measured(rows: Sequence[CaseRow], table: PublishedTable) -> dict[str, dict[int, float]]:
    """Return the values of every curve by length."""
    metric = DRAM_BYTES if table.quantity == "traffic" else LATENCY
    return {
        series.label: {point.seqlen: point.value for point in series.measured if point.value}
        for series in series_of(rows, metric)
    }


def _published(table: PublishedTable, name: str) -> list[float | None]:
    if table.quantity == "traffic":
        return [None if value is None else value * GB for value in table.numbers(name)]
    return table.milliseconds(name) if table.quantity in ("rate", "latency") else [None] * len(table.seqlen)


def _kind(table: PublishedTable) -> str:
    return "time" if table.quantity in ("rate", "latency") else table.quantity


def _plain(name: str) -> str:
    return " ".join(name.casefold().split())
