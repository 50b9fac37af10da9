"""Where one implementation overtakes another. In: two fitted curves. Out: `Crossover`, the length at which
they meet, with a 95 % interval.

Both curves are uncertain, so the interval is that of every length at which their ratio can't be told from 1:
``|log f(n) - log g(n)| <= t * standard error``, t of Student's distribution with the degrees of freedom that
Welch and Satterthwaite give the difference. docs/complexity.md says more.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from attnbench.analysis.power_law import CONFIDENCE, PowerLaw

FARTHEST = 16
"""How many times the longest length is still looked at; what lies beyond is too far to guess."""
_STEPS_AN_OCTAVE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """The length from which on the one that was slower is faster."""

    seqlen: float
    low: float | None
    high: float | None
    """The 95 % interval; an end is None where it lies beyond what was looked at."""
    kind: Literal["bracketed", "extrapolated"]
    """Whether both were measured on both sides of it."""
    first_wins_after: bool
    """Whether it is the first curve that is the lower one from there on."""


def crossover(first: PowerLaw, second: PowerLaw) -> Crossover | None:
    """Return where two curves meet for the last time, up to `FARTHEST` times their lengths; else None."""
    shortest, longest = max(first.shortest, second.shortest), min(first.longest, second.longest)
    if shortest >= longest:
        return None
    octaves = np.log2(longest * FARTHEST / shortest)
    lengths = shortest * 2 ** np.linspace(0, octaves, int(octaves * _STEPS_AN_OCTAVE) + 1)
    apart = np.log(first.value_at(lengths)) - np.log(second.value_at(lengths))
    changes = np.flatnonzero((apart[:-1] < 0) != (apart[1:] < 0))
    if not len(changes):
        return None
    place = int(changes[-1])
    told = np.abs(apart) > _margin(first, second, lengths)
    before, after = np.flatnonzero(told[: place + 1]), np.flatnonzero(told[place + 1 :]) + place + 1
    seqlen = _meeting(lengths, apart, place)
    return Crossover(
        seqlen=seqlen,
        low=float(lengths[before[-1]]) if len(before) else None,
        high=float(lengths[after[0]]) if len(after) else None,
        kind="bracketed" if seqlen <= longest else "extrapolated",
        first_wins_after=bool(apart[place + 1] < 0),
    )


def _margin(first: PowerLaw, second: PowerLaw, lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far apart in logarithms two curves may seem at these lengths when they are equal."""
    one, other = first.log_error_at(lengths) ** 2, second.log_error_at(lengths) ** 2
    with np.errstate(invalid="ignore"):
        freedom = (one + other) ** 2 / (
            one**2 / first.degrees_of_freedom + other**2 / second.degrees_of_freedom
        )
    least = min(first.degrees_of_freedom, second.degrees_of_freedom)
    freedom = np.where(np.isfinite(freedom), freedom, least)
    return np.asarray(stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(one + other))


def _meeting(lengths: NDArray[np.float64], apart: NDArray[np.float64], place: int) -> float:
    share = apart[place] / (apart[place] - apart[place + 1])
    return float(lengths[place] * (lengths[place + 1] / lengths[place]) ** share)
