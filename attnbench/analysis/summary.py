"""First findings that follow from the records alone. In: `CaseRow`s. Out: `Summary`: rankings, growth,
shares, failures, accuracy, doubts.

`Summary.growth` holds secants between the last two lengths, ``log(y2 / y1) / log(n2 / n1)``, labelled as
such; fits are in `Summary.scalings`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnbench.analysis.clocks import VALID, below_usual
from attnbench.analysis.facets import Facet, facets_of
from attnbench.analysis.metrics import LATENCY, PEAK_MEMORY, STATE_MEMORY, Metric
from attnbench.analysis.overtaking import Overtaking, overtakings
from attnbench.analysis.quality import EXACT_SEMANTICS, Exchange, exchanges
from attnbench.analysis.rows import CaseRow
from attnbench.analysis.scaling import Scaling, scalings
from attnbench.analysis.series import Point, Series, grouped, series_of
from attnbench.analysis.shares import ShareChange, share_changes

LEAST_STEP = 1.5
"""Factor between two lengths from which on they tell how a quantity grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One implementation's place: its value and how many times the best one's that is."""

    label: str
    value: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Comparable implementations at the longest length that most of them reach, best first."""

    metric: Metric
    facet: Facet
    seqlen: int
    standings: tuple[Standing, ...]
    tied: tuple[str, ...]
    """Those whose 95 % interval overlaps the best one's, the best included; empty if the best stands alone.
    """
    missing: tuple[str, ...]
    """Those that have no value at this length."""
    doubts: tuple[str, ...]
    """Verdicts that speak against any of the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalExponent:
    """How a quantity grows between two neighbouring lengths: ``value ~ seqlen ** exponent``."""

    metric: Metric
    facet: Facet
    """Of the first mask of those that are shown together; a curve under another says so in its label."""
    label: str
    seqlen_from: int
    seqlen_to: int
    exponent: float
    doubts: tuple[str, ...]
    """Verdicts that speak against either value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Cases of one curve that ended alike."""

    facet: Facet
    """Of the first mask of those that are shown together."""
    label: str
    status: str
    seqlens: tuple[int, ...]
    reason: str
    """Of the shortest one."""
    expected_bytes: int | None
    """What the shortest one was predicted to need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A quantity that fine cases lack, with the reason, and for whom."""

    field: str
    """Several in a row, where they are missing alike."""
    reason: str
    implementations: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How the outputs compare with the float64 truth."""

    checked: int
    incorrect: int
    closest: CaseRow | None
    """The correct case that used most of its error budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All first findings of a report."""

    tally: dict[str, int]
    latency: tuple[Ranking, ...]
    memory: tuple[Ranking, ...]
    state: tuple[Ranking, ...]
    shares: tuple[ShareChange, ...]
    exchanges: tuple[Exchange, ...]
    growth: tuple[LocalExponent, ...]
    scalings: tuple[Scaling, ...]
    overtakings: tuple[Overtaking, ...]
    failures: tuple[Failure, ...]
    absences: tuple[Absence, ...]
    accuracy: Accuracy
    doubts: dict[str, int]
    """Verdict of a latency other than ``valid`` -> how many cases carry it."""
    slow_clocks: tuple[CaseRow, ...]
    """Those whose SM clock was below the usual one of their run, the slowest first."""
    timed: int
    one_launch: int
    """How many of the latencies have but the interval of one launch."""
    other_functions: tuple[str, ...]
    """Implementations that compute another function than softmax attention."""


def summarize(rows: Sequence[CaseRow]) -> Summary:
    """Return the first findings."""
    facets = facets_of(rows)
    groups = grouped(facets)
    timed = [row for row in rows if row.latency_ms is not None]
    return Summary(
        tally=dict(Counter(row.status for row in rows)),
        latency=tuple(_rankings(facets, LATENCY)),
        memory=tuple(_rankings(facets, PEAK_MEMORY)),
        state=tuple(_rankings(facets, STATE_MEMORY)),
        shares=tuple(share_changes(groups)),
        exchanges=tuple(exchanges(facets)),
        growth=tuple(
            exponent
            for metric in (LATENCY, PEAK_MEMORY, STATE_MEMORY)
            for exponent in _growth(groups, metric)
        ),
        scalings=tuple(scalings(groups)),
        overtakings=tuple(overtakings(facets)),
        failures=tuple(_failures(groups)),
        absences=tuple(_absences(rows)),
        accuracy=_accuracy(rows),
        doubts=dict(Counter(word for row in timed for word in row.latency_verdict if word != VALID)),
        slow_clocks=tuple(sorted(filter(below_usual, timed), key=below_usual, reverse=True)),
        timed=len(timed),
        one_launch=sum(row.one_launch for row in timed),
        other_functions=tuple(sorted({row.implementation for row in rows if _is_other_function(row)})),
    )


def common_length(series: Iterable[Series]) -> int | None:
    """Return the longest length at which every series with any value has one, else the longest that most
    have; None without values.
    """
    reached = [{point.seqlen for point in one.measured} for one in series]
    counts = Counter(length for lengths in reached for length in lengths)
    return max(counts, key=lambda length: (counts[length], length), default=None)


def rank(series: Sequence[Series], metric: Metric, facet: Facet) -> Ranking | None:
    """Rank comparable series at their longest common length, smallest value first; None without any value."""
    seqlen = common_length(series)
    at: dict[str, Point] = {
        one.label: point for one in series for point in one.measured if point.seqlen == seqlen
    }
    order = sorted(at, key=lambda label: at[label].value or 0.0)
    if seqlen is None:
        return None
    best = at[order[0]]
    values = {label: at[label].value or 0.0 for label in order}
    tied = tuple(label for label in order if label == order[0] or _overlap(best, at[label]))
    return Ranking(
        metric=metric,
        facet=facet,
        seqlen=seqlen,
        standings=tuple(
            Standing(label=label, value=values[label], ratio=_ratio(values[label], values[order[0]]))
            for label in order
        ),
        tied=tied if len(tied) > 1 else (),
        missing=tuple(one.label for one in series if one.label not in at),
        doubts=tuple(sorted({word for point in at.values() for word in point.doubts})),
    )


def local_exponent(points: Sequence[Point]) -> tuple[int, int, float] | None:
    """Return ``(n1, n2, log(y2 / y1) / log(n2 / n1))`` of the last two points with a value.

    None if there are not two positive ones, if their lengths differ by less than `LEAST_STEP`, or if their
    95 % intervals overlap: then the slope says more of the noise than of the growth.
    """
    first, last = points[-2:] if len(points) > 1 else (None, None)
    if first is None or last is None or not first.value or not last.value:
        return None
    n1, n2 = first.seqlen, last.seqlen
    if n1 < 1 or n2 < LEAST_STEP * n1 or _overlap(first, last):
        return None
    return n1, n2, math.log(last.value / first.value) / math.log(n2 / n1)


def _rankings(facets: dict[Facet, list[CaseRow]], metric: Metric) -> Iterable[Ranking]:
    for facet, rows in facets.items():
        ranking = rank(series_of(rows, metric), metric, facet)
        if ranking:
            yield ranking


def _growth(groups: dict[Facet, list[CaseRow]], metric: Metric) -> Iterable[LocalExponent]:
    for facet, rows in groups.items():
        for series in series_of(rows, metric):
            secant = local_exponent(series.measured)
            if secant:
                yield LocalExponent(
                    metric=metric,
                    facet=facet,
                    label=series.label,
                    seqlen_from=secant[0],
                    seqlen_to=secant[1],
                    exponent=secant[2],
                    doubts=tuple(sorted({word for point in series.measured[-2:] for word in point.doubts})),
                )


def _failures(groups: dict[Facet, list[CaseRow]]) -> Iterable[Failure]:
    for facet, rows in groups.items():
        for series in series_of(rows, PEAK_MEMORY):
            by_status: dict[str, list[Point]] = defaultdict(list)
            for point in series.failed:
                by_status[point.status].append(point)
            for status, points in by_status.items():
                yield Failure(
                    facet=facet,
                    label=series.label,
                    status=status,
                    seqlens=tuple(point.seqlen for point in points),
                    reason=points[0].reason,
                    expected_bytes=None if points[0].expected is None else int(points[0].expected),
                )


def _absences(rows: Iterable[CaseRow]) -> list[Absence]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        if row.is_ok:
            for name, reason in row.absent.items():
                found[name, reason].append(row.implementation)
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (name, reason), who in found.items():
        alike[reason, tuple(who)].append(name)
    return [
        Absence(
            field=", ".join(names), reason=reason, implementations=tuple(dict.fromkeys(who)), count=len(who)
        )
        for (reason, who), names in alike.items()
    ]


def _accuracy(rows: Sequence[CaseRow]) -> Accuracy:
    used = [row for row in rows if row.is_ok and row.budget_used is not None]
    return Accuracy(
        # An output that is not finite is outside its budget without an error that is a number.
        checked=sum(row.max_abs_error is not None or row.status == "incorrect" for row in rows),
        incorrect=sum(row.status == "incorrect" for row in rows),
        closest=max(used, key=lambda row: row.budget_used or 0.0, default=None),
    )


def _is_other_function(row: CaseRow) -> bool:
    return row.softmax_distance is not None or row.semantics not in ("", EXACT_SEMANTICS)


def _overlap(one: Point, other: Point) -> bool:
    """Whether the 95 % intervals share a value; not if either has none."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and other.low <= one.high


def _ratio(value: float, best: float) -> float:
    if best > 0:
        return value / best
    return 1.0 if value == best else math.inf
