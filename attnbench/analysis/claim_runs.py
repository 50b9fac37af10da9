"""What the records of a run say of claims. In: a run, claims. Out: estimates by claim and quantity.

Only cores count (level ``attention``). What a run does not hold is left out, and the claim rests on the rest.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from attnbench.analysis.claims import Claim, Estimate, Expectation
from attnbench.analysis.crossover import crossover
from attnbench.analysis.facets import facets_of
from attnbench.analysis.metrics import LATENCY
from attnbench.analysis.power_law import PowerLaw, fit_power_law
from attnbench.analysis.rows import CaseRow, rows_of
from attnbench.analysis.series import Point, Series, series_of
from attnbench.run.store import Run

FROM_SEQLEN = 1024
"""Of speed-ups; below it a GPU's latency is that of a launch."""
TOLD_APART = 1.0
"""Of an exponent's interval: wider ones hold two of the powers that claims are about."""
NO_LATENCY = {"implausible", "below_resolution"}
"""Verdicts of latencies that are none."""


class Curves(NamedTuple):
    """Comparable latencies of one mode on one device, by implementation; masks are apart."""

    mode: str
    device: str
    series: tuple[Series, ...]

    def of(self, implementation: str) -> list[Series]:
        """The curves of an implementation."""
        return [one for one in self.series if one.implementation == implementation]

    def pairs(self, asked: Expectation) -> Iterator[tuple[Series, Series]]:
        """Every curve of one implementation with every one of the other under the same mask."""
        for one in self.of(asked.of["implementation"]):
            for other in self.of(asked.of["against"]):
                if one.mask == other.mask:
                    yield one, other


def measured_in(run: Run, claims: Sequence[Claim]) -> dict[str, dict[str, Estimate]]:
    """Return what of the claims' expectations the run can tell, by id and quantity."""
    curves = list(_curves(rows_of({"run": run})))
    on_gpu = [one for one in curves if one.device == "cuda"]
    found: dict[str, dict[str, Estimate]] = {}
    for claim in claims:
        for expectation in claim.expected:
            if expectation.quantity in QUANTITIES and expectation.of:
                where = on_gpu if claim.needs == "a GPU" else curves
                estimate = QUANTITIES[expectation.quantity](where, expectation)
                if estimate is not None:
                    found.setdefault(claim.id, {})[expectation.quantity] = estimate
    return found


def _curves(rows: Sequence[CaseRow]) -> Iterator[Curves]:
    for facet, members in facets_of(rows).items():
        if facet.level == "attention":
            yield Curves(facet.mode, facet.device, tuple(series_of(members, LATENCY)))


def _timed(series: Series) -> list[Point]:
    return [point for point in series.measured if not NO_LATENCY & set(point.doubts)]


def _fit(series: Series) -> PowerLaw | None:
    points = _timed(series)
    return fit_power_law([one.seqlen for one in points], [one.value or 0.0 for one in points])


def _power_of_n(curves: Sequence[Curves], asked: Expectation) -> Estimate | None:
    """Exponent of the forward latency's growth beyond an overhead, on the curve of most lengths."""
    forward = [one for each in curves if each.mode == "fwd" for one in each.of(asked.of["implementation"])]
    longest = max(forward, key=lambda one: len(_timed(one)), default=None)
    law = None if longest is None else _fit(longest)
    if law is None or law.exponent_high - law.exponent_low >= TOLD_APART:
        return None
    return Estimate(law.exponent, law.exponent_low, law.exponent_high)


def _speedups(curves: Sequence[Curves], asked: Expectation) -> list[Estimate]:
    """How many times faster, at each length that both have; forward, and forward and backward."""
    found = []
    for each in curves:
        if each.mode not in ("fwd", "fwd_bwd"):
            continue
        for fast, slow in each.pairs(asked):
            others = {point.seqlen: point for point in _timed(slow)}
            found += [
                _ratio(others[point.seqlen], point)
                for point in _timed(fast)
                if point.seqlen >= FROM_SEQLEN and point.seqlen in others
            ]
    return found


def _ratio(over: Point, under: Point) -> Estimate:
    value, by = over.value or 0.0, under.value or 1.0
    return Estimate(
        value / by, (over.low or value) / (under.high or by), (over.high or value) / (under.low or by)
    )


def _least_speedup(curves: Sequence[Curves], asked: Expectation) -> Estimate | None:
    return min(_speedups(curves, asked), default=None)


def _largest_speedup(curves: Sequence[Curves], asked: Expectation) -> Estimate | None:
    return max(_speedups(curves, asked), default=None)


def _overtaken_at(curves: Sequence[Curves], asked: Expectation) -> Estimate | None:
    """The shortest length from which on one is faster than the other, forward, by fitted curves.

    None where it isn't yet at the longest that was measured, and that is short of what is claimed.
    """
    found = []
    for each in curves:
        for one, other in each.pairs(asked) if each.mode == "fwd" else ():
            first, second = _fit(one), _fit(other)
            if first is None or second is None:
                continue
            shortest, longest = max(first.shortest, second.shortest), min(first.longest, second.longest)
            meeting = crossover(first, second)
            if meeting is not None and meeting.first_wins_after:
                low = meeting.seqlen if meeting.low is None else meeting.low
                high = float("inf") if meeting.high is None else meeting.high
                found.append(Estimate(meeting.seqlen, low, high))
            elif meeting is None and first.value_at(shortest) < second.value_at(shortest):
                found.append(Estimate(shortest, 0, shortest))
            elif longest >= (asked.at_least or 0):
                found.append(Estimate(longest, longest, float("inf")))
    return min(found, default=None)


QUANTITIES: dict[str, Callable[[Sequence[Curves], Expectation], Estimate | None]] = {
    "latency_power_of_n": _power_of_n,
    "least_speedup": _least_speedup,
    "largest_speedup": _largest_speedup,
    "overtaken_at": _overtaken_at,
}
"""What a claim can ask of a run."""
