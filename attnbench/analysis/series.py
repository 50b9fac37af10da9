"""Tidy series against the sequence length. In: `CaseRow`s and a `Metric`. Out: panels of series, every case
in exactly one of them.

A facet is what must be equal for two curves to be comparable. A panel is what is drawn in one pair of axes: a
facet, or facets that differ in nothing but the mask when together they are few enough to tell apart.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.analysis.clocks import VALID
from attnbench.analysis.facets import Facet, facets_of, group_title, untold_of
from attnbench.analysis.metrics import Metric
from attnbench.analysis.rows import CaseRow

SERIES_IN_A_PANEL = 9
"""Masks share a panel only up to this many curves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One case in a series. Without a ``value`` it failed (``status`` is not ``ok``) or the quantity could
    not be had.
    """

    seqlen: int
    status: str
    value: float | None
    low: float | None = None
    high: float | None = None
    one_launch: bool = False
    """Whether ``low`` and ``high`` are of the samples of one launch."""
    expected: float | None = None
    limit: float | None = None
    floor: float | None = None
    theory: float | None = None
    """What a formula says of a quantity that should grow alike; its unit may be another."""
    reason: str = ""
    doubts: tuple[str, ...] = ()
    """Verdicts that speak against the value."""

    @property
    def failed(self) -> bool:
        """Whether the case itself has no result."""
        return self.status != "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve: an implementation (with its options) under one mask in one run, by length."""

    run: str
    implementation: str
    options: str
    mask: str
    label: str
    """The implementation, and whatever else tells this curve from its neighbours."""
    points: tuple[Point, ...]

    @property
    def measured(self) -> tuple[Point, ...]:
        """The points that have a value."""
        return tuple(point for point in self.points if point.value is not None)

    @property
    def failed(self) -> tuple[Point, ...]:
        """The points whose case has no result."""
        return tuple(point for point in self.points if point.failed)

    @property
    def absent(self) -> tuple[Point, ...]:
        """The points whose case is fine but lacks this quantity."""
        return tuple(point for point in self.points if not point.failed and point.value is None)

    @property
    def explained(self) -> bool:
        """Whether a case that is fine has a value, or its record says why not."""
        return any(not point.failed and (point.value is not None or point.reason) for point in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCurve:
    """What others published for a panel's cases: values by length."""

    label: str
    place: int
    """Among all of a report, for a look of its own."""
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes. ``title`` holds what tells it from the other panels."""

    metric: Metric
    facet: Facet
    """Of the first mask in it; curves under another one say so in their label."""
    masks: tuple[str, ...]
    title: str
    series: tuple[Series, ...]
    published: tuple[PublishedCurve, ...] = ()

    @property
    def has_values(self) -> bool:
        """Whether there is anything to draw as a curve."""
        return any(series.measured for series in self.series)


def groups_of(facets: Mapping[Facet, Sequence[CaseRow]]) -> list[tuple[Facet, ...]]:
    """Return the facets that are shown together: those that differ in nothing but the mask, if their curves
    are few enough.
    """
    alike: dict[Facet, list[Facet]] = defaultdict(list)
    for facet in facets:
        alike[replace(facet, mask="")].append(facet)
    groups: list[tuple[Facet, ...]] = []
    for members in alike.values():
        curves = {_series_key(row) for facet in members for row in facets[facet]}
        together = len(curves) <= SERIES_IN_A_PANEL
        groups += [tuple(members)] if together else [(facet,) for facet in members]
    return groups


def grouped(facets: Mapping[Facet, Sequence[CaseRow]]) -> dict[Facet, list[CaseRow]]:
    """Return the rows of facets that are shown together, under the first of them."""
    return {
        together[0]: [row for facet in together for row in facets[facet]] for together in groups_of(facets)
    }


def panels_of(rows: Sequence[CaseRow], metric: Metric) -> list[Panel]:
    """Return every panel of a metric. Every row is in exactly one series of one panel, whatever its status.

    Rows of levels and modes that cannot have the metric are left out, and so are curves and panels without
    any value of a metric that only kernels have, or that no suite asked for.
    """
    facets = facets_of(rows)
    untold = untold_of(facets)
    panels = []
    for together in groups_of(facets):
        series = series_of([row for facet in together for row in facets[facet] if _has(row, metric)], metric)
        panel = Panel(
            metric=metric,
            facet=together[0],
            masks=tuple(facet.mask for facet in together),
            title=group_title(together[0], untold),
            series=tuple(one for one in series if _belongs(one, metric)),
        )
        if panel.series:
            panels.append(panel)
    return panels


def _has(row: CaseRow, metric: Metric) -> bool:
    """Return whether a case of this level and mode can have the metric at all."""
    return (not metric.levels or row.level in metric.levels) and (
        not metric.modes or row.mode in metric.modes
    )


def _belongs(series: Series, metric: Metric) -> bool:
    if metric.kernels_only:
        return bool(series.measured)
    return series.explained or not metric.optional


def series_of(rows: Sequence[CaseRow], metric: Metric) -> list[Series]:
    """Return one series per implementation, options, mask and run among comparable rows, in order of first
    appearance.

    A label names the mask where it is not that of the first row.
    """
    groups: dict[tuple[str, str, str, str], list[CaseRow]] = defaultdict(list)
    for row in rows:
        groups[_series_key(row)].append(row)
    first_mask = rows[0].mask if rows else ""
    return [
        Series(
            implementation=implementation,
            options=options,
            mask=mask,
            run=run,
            label=series_label(implementation, options, mask if mask != first_mask else "", run),
            points=tuple(_point(row, metric) for row in sorted(members, key=lambda row: row.seqlen)),
        )
        for (implementation, options, mask, run), members in groups.items()
    ]


def _series_key(row: CaseRow) -> tuple[str, str, str, str]:
    return row.implementation, row.options, row.mask, row.run_label


def series_label(implementation: str, *others: str) -> str:
    """Return a curve's label: the implementation, and in brackets whatever else tells it apart."""
    said = [other for other in others if other]
    return f"{implementation} ({'; '.join(said)})" if said else implementation


def _point(row: CaseRow, metric: Metric) -> Point:
    def number(name: str) -> float | None:
        return getattr(row, name) if name else None

    value = number(metric.value) if row.is_ok else None
    return Point(
        seqlen=row.seqlen,
        status=row.status,
        value=value,
        low=number(metric.low),
        high=number(metric.high),
        one_launch=bool(metric.high) and row.one_launch,
        expected=number(metric.expected),
        limit=number(metric.limit),
        floor=number(metric.floor),
        theory=row.theory.get(metric.theory),
        doubts=tuple(word for word in row.latency_verdict if word != VALID) if metric.judged else (),
        reason=row.why_absent(*metric.record_field) if row.is_ok and value is None else row.reason,
    )
