"""How each quantity grows with the length, and whether theory agrees. In: rows by facet. Out: `Scaling`s.

Two views of the same points. Secants between neighbouring lengths, ``log(y2 / y1) / log(n2 / n1)``, stand
beside the secants of theory over the same lengths: a lower-order term bends both alike. A fit of an overhead
and a power says one exponent for the whole range, with a 95 % interval; theory's is fitted in the same way.
Counts are held to their secants, what is measured with noise to its interval.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from attnbench.analysis.facets import Facet
from attnbench.analysis.metrics import (
    DRAM_BYTES,
    FLOPS,
    LATENCY,
    OPERAND_BYTES,
    PEAK_MEMORY,
    REQUESTED_BYTES,
    Metric,
)
from attnbench.analysis.power_law import LEAST_LENGTHS, PowerLaw, fit_power_law
from attnbench.analysis.rows import CaseRow
from attnbench.analysis.series import Point, Series, series_of

SCALED = (LATENCY, PEAK_MEMORY, OPERAND_BYTES, REQUESTED_BYTES, DRAM_BYTES, FLOPS)
SECANT_TOLERANCE = 0.02
"""How far a counted secant may lie from theory's."""
SAYS_NOTHING = 1.0
"""An interval that is wider holds both n and n squared."""
STANDS_OUT = 0.3
"""A power that differs by more changes the order of growth, not a detail of it."""

Verdict = Literal["agrees", "differs", "too few lengths", "undetermined", "no theory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secant:
    """The local exponent between two neighbouring lengths; theory's beside it where there is one."""

    seqlen_from: int
    seqlen_to: int
    exponent: float
    theory: float | None

    @property
    def difference(self) -> float | None:
        """How much steeper than theory it is."""
        return None if self.theory is None else self.exponent - self.theory


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How one quantity of one curve grows."""

    metric: Metric
    facet: Facet
    """Of the first mask in the group; a curve under another one says so in its label."""
    label: str
    seqlens: tuple[int, ...]
    fit: PowerLaw | None
    theory: float | None
    """Theory's exponent over the same lengths, fitted alike."""
    secants: tuple[Secant, ...]
    verdict: Verdict
    difference: float
    """How far outside of the interval, or of the tolerance, theory lies; positive if measured is steeper."""
    doubts: tuple[str, ...]
    """Verdicts that speak against any of the values."""

    @property
    def stands_out(self) -> bool:
        """Whether it grows in another order than theory says."""
        return self.verdict == "differs" and abs(self.difference) > STANDS_OUT


def scalings(groups: Mapping[Facet, list[CaseRow]]) -> Iterator[Scaling]:
    """Yield the growth of every curve of every quantity that has at least two lengths."""
    for facet, rows in groups.items():
        for metric in SCALED:
            for series in series_of(rows, metric):
                if len({point.seqlen for point in series.measured}) > 1:
                    yield scaling_of(series, metric, facet)


def scaling_of(series: Series, metric: Metric, facet: Facet) -> Scaling:
    """Return how one curve grows."""
    points = [point for point in series.measured if point.value]
    fit = fit_power_law([point.seqlen for point in points], [point.value or 0.0 for point in points])
    theory = _theory_exponent(points)
    secants = tuple(_secants(points))
    verdict, difference = _judge(metric, fit, theory, secants)
    return Scaling(
        metric=metric,
        facet=facet,
        label=series.label,
        seqlens=tuple(dict.fromkeys(point.seqlen for point in points)),
        fit=fit,
        theory=theory,
        secants=secants,
        verdict=verdict,
        difference=difference,
        doubts=tuple(sorted({word for point in points for word in point.doubts})),
    )


def _theory_exponent(points: Sequence[Point]) -> float | None:
    known = [point for point in points if point.theory]
    fit = fit_power_law([point.seqlen for point in known], [point.theory or 0.0 for point in known])
    return fit.exponent if fit is not None and len(known) == len(points) else None


def _secants(points: Sequence[Point]) -> Iterator[Secant]:
    for one, other in pairwise(points):
        if one.seqlen < other.seqlen:
            step = math.log(other.seqlen / one.seqlen)
            known = one.theory and other.theory
            yield Secant(
                seqlen_from=one.seqlen,
                seqlen_to=other.seqlen,
                exponent=math.log((other.value or 0.0) / (one.value or 0.0)) / step,
                theory=math.log((other.theory or 0.0) / (one.theory or 0.0)) / step if known else None,
            )


def _judge(
    metric: Metric, fit: PowerLaw | None, theory: float | None, secants: Sequence[Secant]
) -> tuple[Verdict, float]:
    differences = [secant.difference for secant in secants if secant.difference is not None]
    if metric.counted and differences:
        worst = max(differences, key=abs)
        return ("agrees", 0.0) if abs(worst) <= SECANT_TOLERANCE else ("differs", worst)
    if len(secants) + 1 < LEAST_LENGTHS:
        return "too few lengths", 0.0
    if theory is None:
        return "no theory", 0.0
    if fit is None or not fit.determined or fit.exponent_high - fit.exponent_low > SAYS_NOTHING:
        return "undetermined", 0.0
    if fit.exponent_low > theory:
        return "differs", fit.exponent_low - theory
    if fit.exponent_high < theory:
        return "differs", fit.exponent_high - theory
    return "agrees", 0.0
