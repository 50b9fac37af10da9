"""When a latency has been sampled enough. In: samples. Out: an interval of the median, whether to stop."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Self

from attnbench.plan.settings import MeasureSettings

CONFIDENCE_PERCENT = 95
FLOOR = 3


class Interval(NamedTuple):
    """A confidence interval of the median, in the unit of the samples."""

    low: float
    high: float


@cache
def median_ranks(count: int) -> tuple[int, int]:
    """Return the ranks (from 0) of the two order statistics that enclose the median with 95 % confidence.

    How many samples lie below the true median is Binomial(count, 1/2), whatever their distribution, so the
    tails are counted exactly, in integers. Five samples or fewer cannot give 95 %; then it is the extremes.
    """
    tail, ways, rank = 0, 1, 0
    while 2 * 100 * (tail + ways) <= (100 - CONFIDENCE_PERCENT) * 2**count:
        tail += ways
        ways = ways * (count - rank) // (rank + 1)
        rank += 1
    low = max(rank - 1, 0)
    return low, count - 1 - low


def quantile(samples: Sequence[float], fraction: float) -> float:
    """Return the quantile of the samples, linear between neighbours."""
    ordered = sorted(samples)
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median_interval(samples: Sequence[float]) -> Interval:
    """Return the distribution-free confidence interval of the median: two order statistics."""
    ordered = sorted(samples)
    low, high = median_ranks(len(ordered))
    return Interval(ordered[low], ordered[high])


def relative_half_width(samples: Sequence[float]) -> float:
    """Return half the interval of the median over the median: the noise of the number that is reported."""
    middle = quantile(samples, 0.5)
    low, high = median_interval(samples)
    return (high - low) / 2 / middle if middle > 0 else float("inf")


@dataclass(frozen=True, kw_only=True)
class StoppingRule:
    """Stop when ``min_samples`` are in and the median is known to ``target``, or when the budget ends.

    ``target`` is the half-width of the median's 95 % interval over the median. ``floor`` samples are taken
    whatever they cost. A call of ``dear_s`` or more (None: of the budget) is its own warm-up.
    """

    min_samples: int = 30
    max_samples: int = 1000
    target: float = 0.01
    budget_s: float = 1.0
    floor: int = FLOOR
    dear_s: float | None = None

    @classmethod
    def of_launch(cls, settings: MeasureSettings) -> Self:
        """Return the rule for one of a case's launches: its part of the case's budget, floor and ceiling."""
        parts = settings.launches
        return cls(
            min_samples=max(settings.min_samples, FLOOR),
            max_samples=math.ceil(cls.max_samples / parts),
            budget_s=settings.latency_budget_s / parts,
            floor=math.ceil(FLOOR / parts),
            dear_s=settings.latency_budget_s,
        )

    def enough(self, samples: Sequence[float], elapsed_s: float) -> bool:
        """Say whether to stop."""
        if len(samples) < self.floor:
            return False
        if elapsed_s >= self.budget_s or len(samples) >= self.max_samples:
            return True
        return len(samples) >= self.min_samples and relative_half_width(samples) < self.target
