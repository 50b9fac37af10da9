"""How close latencies come to what their device can do. In: rows, ceilings of runs. Out: `Roofline`s.

The roofline model (Williams, Waterman and Patterson, 2009) with a third limit: FLOPs at the rate of a large
product, bytes at the fastest bandwidth, exponentials at the rate of ``exp2``, all measured at the start of
the run. Whichever takes longest of those that the call did not beat is the limit that binds. At level
``attention`` alone: useful FLOPs have closed forms there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.clocks import VALID
from attnbench.analysis.facets import Facet, facets_of
from attnbench.analysis.metrics import LATENCY
from attnbench.analysis.rows import CaseRow, clean_text, positive_number
from attnbench.analysis.series import groups_of, series_of
from attnbench.device.rates import product_rate
from attnbench.run.store import Run

SLACK = 1.05
"""A limit that is beaten by more than this did not bind."""
MATMUL, MEMORY, EXP2 = "matmul", "memory", "exp2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What a device was seen to do at most, for one type."""

    run: str
    device: str
    """Its own name, or the kind if the run does not say."""
    dtype: str
    products: str
    """By which products the type's are computed fastest."""
    flops_per_s: float
    bytes_per_s: float
    exp2_per_s: float | None
    cache_bytes: float
    threads: int | None
    doubts: tuple[str, ...]
    """Verdicts that speak against the measurement of the ceilings."""

    @property
    def ridge(self) -> float:
        """The FLOPs a byte from which on products are the limit, not memory."""
        return self.flops_per_s / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """One case under its roof."""

    facet: Facet
    """Of the first mask of those that are shown together."""
    label: str
    row: CaseRow
    flops_per_s: float
    """Useful FLOPs over the latency."""
    intensity: float | None
    """Useful FLOPs a byte: of device memory where it was counted, else of operands."""
    counted: bool
    """Whether those bytes are counted at the device's memory."""
    limits_ms: Mapping[str, float]
    """How long ``matmul``, ``memory`` and ``exp2`` take at least, as far as known."""
    limit: str
    """The one that binds; empty where the call beat all of them."""
    fraction: float | None
    """Its time over the latency: 1 is all that the device can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """All cases under one roof."""

    roof: Roof
    points: tuple[RooflinePoint, ...]

    @property
    def longest(self) -> list[RooflinePoint]:
        """The longest length of each curve."""
        found: dict[tuple[Facet, str], RooflinePoint] = {}
        for point in self.points:
            key = point.facet, point.label
            if key not in found or point.row.seqlen > found[key].row.seqlen:
                found[key] = point
        return list(found.values())


def rooflines_of(rows: Sequence[CaseRow], runs: Mapping[str, Run]) -> list[Roofline]:
    """Return a roofline for each run, device and type with a latency; runs are by ``CaseRow.run``."""
    points: dict[tuple[str, str, str], list[RooflinePoint]] = {}
    roofs: dict[tuple[str, str, str], Roof | None] = {}
    for facet, label, row in _labelled(rows):
        key = row.run, row.device, row.dtype
        if key not in roofs:
            roofs[key] = _roof(runs[row.run].meta, *key) if row.run in runs else None
        roof = roofs[key]
        point = None if roof is None else _point(facet, label, row, roof)
        if point is not None:
            points.setdefault(key, []).append(point)
    return [
        Roofline(roof=roof, points=tuple(points[key]))
        for key, roof in roofs.items()
        if roof and key in points
    ]


def _labelled(rows: Sequence[CaseRow]) -> Iterator[tuple[Facet, str, CaseRow]]:
    """Yield cases that can have a place, with the labels that their curves have in the plots of latency."""
    facets = facets_of(rows)
    for together in groups_of(facets):
        members = [row for facet in together for row in facets[facet]]
        labels = {
            (one.implementation, one.options, one.mask, one.run): one.label
            for one in series_of(members, LATENCY)
        }
        for row in members:
            if row.is_ok and row.level == "attention" and row.latency_ms and row.useful_flops:
                yield (
                    together[0],
                    labels[row.implementation, row.options, row.mask, row.run_label],
                    row,
                )


def _point(facet: Facet, label: str, row: CaseRow, roof: Roof) -> RooflinePoint | None:
    flops, latency_ms = row.useful_flops, row.latency_ms
    if flops is None or latency_ms is None or not _same_threads(row, roof):
        return None
    moved = row.operand_bytes if row.dram_bytes is None else row.dram_bytes
    limits = {MATMUL: 1e3 * flops / roof.flops_per_s}
    through_memory = _memory_bytes(row, roof)
    if through_memory:
        limits[MEMORY] = 1e3 * through_memory / roof.bytes_per_s
    if row.exponentials and roof.exp2_per_s:
        limits[EXP2] = 1e3 * row.exponentials / roof.exp2_per_s
    unbeaten = {name: ms for name, ms in limits.items() if ms <= SLACK * latency_ms}
    limit = max(unbeaten, key=lambda name: unbeaten[name], default="")
    return RooflinePoint(
        facet=facet,
        label=label,
        row=row,
        flops_per_s=flops / latency_ms * 1e3,
        intensity=flops / moved if moved else None,
        counted=row.dram_bytes is not None,
        limits_ms=limits,
        limit=limit,
        fraction=unbeaten[limit] / latency_ms if limit else None,
    )


def _memory_bytes(row: CaseRow, roof: Roof) -> int | None:
    """Return the bytes that had to come from memory: those counted there; else those of operands, but of what
    a cache holds as a whole only what is compulsory.
    """
    if row.dram_bytes is not None:
        return row.dram_bytes
    if row.operand_bytes is not None and row.operand_bytes > roof.cache_bytes:
        return row.operand_bytes
    return row.compulsory_bytes


def _same_threads(row: CaseRow, roof: Roof) -> bool:
    return None in (row.threads, roof.threads) or row.threads == roof.threads


def _roof(meta: Mapping[str, Any], run: str, device: str, dtype: str) -> Roof | None:
    """Return the roof of a run's cases; None where its ceilings lack a rate of products or bytes."""
    ceilings = meta.get("ceilings")
    given = ceilings.get(device) if isinstance(ceilings, Mapping) else None
    if not isinstance(given, Mapping):
        return None
    rates = given.get("matmul_flops_per_s")
    known = (
        {str(name): positive_number(rate) for name, rate in rates.items()}
        if isinstance(rates, Mapping)
        else {}
    )
    product = product_rate({name: rate for name, rate in known.items() if rate is not None}, dtype)
    ways = (positive_number(given.get(f"{way}_bytes_per_s")) for way in ("copy", "triad", "read"))
    bytes_per_s = max((rate for rate in ways if rate is not None), default=None)
    if product is None or bytes_per_s is None:
        return None
    verdict = given.get("verdict")
    threads = given.get("threads")
    return Roof(
        run=run,
        device=clean_text(given.get("name")) or device,
        dtype=dtype,
        products=product[0],
        flops_per_s=product[1],
        bytes_per_s=bytes_per_s,
        exp2_per_s=positive_number(given.get("exp2_per_s")),
        cache_bytes=positive_number(given.get("cache_bytes")) or 0.0,
        threads=threads if isinstance(threads, int) else None,
        doubts=tuple(clean_text(word) for word in verdict if word != VALID)
        if isinstance(verdict, list)
        else (),
    )
