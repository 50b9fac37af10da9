"""Who overtakes whom, and from what length. In: comparable curves of one quantity. Out: `Overtaking`s.

Where both curves have a fit the crossing is that of the fits, with an interval. Where one has too few
lengths, it is only known to lie between two lengths that both reached, told apart at either.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from attnbench.analysis.crossover import crossover
from attnbench.analysis.facets import Facet
from attnbench.analysis.metrics import LATENCY, PEAK_MEMORY, Metric
from attnbench.analysis.power_law import PowerLaw, fit_power_law
from attnbench.analysis.rows import CaseRow
from attnbench.analysis.series import Point, Series, series_of

COMPARED = (LATENCY, PEAK_MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaking:
    """One curve goes below another and stays there, as far as was looked."""

    metric: Metric
    facet: Facet
    winner: str
    """The label of the one that is below from there on."""
    loser: str
    seqlen: float
    low: float | None
    high: float | None
    """The 95 % interval; an end is None where it is open."""
    kind: Literal["bracketed", "between", "extrapolated"]
    """By fits among the measured lengths, between two of them without a fit, or by fits beyond them all."""
    doubts: tuple[str, ...]


def overtakings(facets: Mapping[Facet, list[CaseRow]]) -> Iterator[Overtaking]:
    """Yield every overtaking between two comparable curves, latency first."""
    for metric in COMPARED:
        for facet, rows in facets.items():
            curves = [(one, _fit(one)) for one in series_of(rows, metric)]
            for (first, first_fit), (second, second_fit) in combinations(curves, 2):
                found = _met(first, first_fit, second, second_fit)
                if found is not None:
                    seqlen, low, high, kind, first_wins = found
                    points = first.measured + second.measured
                    yield Overtaking(
                        metric=metric,
                        facet=facet,
                        winner=(first if first_wins else second).label,
                        loser=(second if first_wins else first).label,
                        seqlen=seqlen,
                        low=low,
                        high=high,
                        kind=kind,
                        doubts=tuple(sorted({word for point in points for word in point.doubts})),
                    )


Met = tuple[float, float | None, float | None, Literal["bracketed", "between", "extrapolated"], bool]


def _met(
    first: Series, first_fit: PowerLaw | None, second: Series, second_fit: PowerLaw | None
) -> Met | None:
    if first_fit is None or second_fit is None:
        return _between(first.measured, second.measured)
    found = crossover(first_fit, second_fit)
    if found is None:
        return None
    return found.seqlen, found.low, found.high, found.kind, found.first_wins_after


def _fit(series: Series) -> PowerLaw | None:
    points = [point for point in series.measured if point.value]
    fit = fit_power_law([point.seqlen for point in points], [point.value or 0.0 for point in points])
    return fit if fit is not None and fit.determined else None


def _between(first: Sequence[Point], second: Sequence[Point]) -> Met | None:
    """Return the last two neighbouring lengths at which two curves are told apart, in opposite order."""
    others = {point.seqlen: point for point in second}
    told = [
        (one.seqlen, math.log(one.value / other.value))
        for one in first
        if (other := others.get(one.seqlen)) and one.value and other.value and _apart(one, other)
    ]
    for (start, before), (end, after) in reversed(list(pairwise(told))):
        if (before < 0) != (after < 0):
            share = before / (before - after)
            return start * (end / start) ** share, float(start), float(end), "between", after < 0
    return None


def _apart(one: Point, other: Point) -> bool:
    if one.value == other.value:
        return False
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return True
    return one.high < other.low or other.high < one.low
