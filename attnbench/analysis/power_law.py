"""Overhead and a power of the length fitted to points: ``value(n) = overhead + coefficient * n**exponent``.
In: lengths and positive values. Out: `PowerLaw`, with a 95 % interval of the exponent.

Residuals are of logarithms, so a point that is 5 % off weighs the same at every length. The interval is of
the profile: every exponent for which the best remaining fit is no worse than chance explains, by the F
distribution with the degrees of freedom that lengths leave over. It so rests on how far the lengths lie from
the curve, whatever the reason, and not on how well any one of them repeats. docs/complexity.md says more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEAST_LENGTHS = 3
LEAST_LENGTHS_WITH_OVERHEAD = 4
CONFIDENCE = 0.95
LOWEST_EXPONENT, HIGHEST_EXPONENT = -1.0, 5.0
_TRIED, _ENOUGH = 121, 30
"""Exponents that are tried at a time, and how many of them an interval must hold to be read off."""
_CLOSER_LOOKS = 8
_REWEIGHTINGS = 4
_ABSURD = 1e30
_EXACT = 1e-9
"""A curve that meets every point this closely (in logarithms) is exact: what is left is rounding."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """A fitted curve, and how sure it is."""

    overhead: float
    coefficient: float
    exponent: float
    exponent_low: float
    exponent_high: float
    """The 95 % interval; an end at `LOWEST_EXPONENT` or `HIGHEST_EXPONENT` is as far as was looked."""
    shortest: int
    longest: int
    """The lengths that were fitted: the curve is known between them, and a guess elsewhere."""
    scatter: float
    """Root mean square of what is left over, by degree of freedom, in logarithms: 0.05 is about 5 %."""
    degrees_of_freedom: int
    covariance: tuple[tuple[float, ...], ...]
    """Of ``(overhead, coefficient, exponent)`` in the units of `_jacobian`, for errors of the curve."""
    scale: float
    """The value at the longest length, by which values were divided."""

    @property
    def determined(self) -> bool:
        """Whether the interval ends inside of what was looked at."""
        return self.exponent_low > LOWEST_EXPONENT and self.exponent_high < HIGHEST_EXPONENT

    def value_at(self, seqlen: float | Floats) -> Floats:
        """The curve's value at a length."""
        powers: Floats = np.asarray(seqlen, dtype=float) ** self.exponent
        return self.overhead + self.coefficient * powers

    def log_error_at(self, seqlen: float | Floats) -> Floats:
        """The standard error of the logarithm of the curve's value at a length (delta method)."""
        at = np.log(np.atleast_1d(np.asarray(seqlen, dtype=float)) / self.longest)
        power = self.coefficient * self.longest**self.exponent / self.scale
        slopes = _jacobian(self.overhead / self.scale, power, self.exponent, at)
        slopes = slopes[:, 3 - len(self.covariance) :]
        squares: Floats = (slopes @ np.array(self.covariance) * slopes).sum(axis=1)
        return np.sqrt(squares)


def fit_power_law(
    seqlens: Sequence[int], values: Sequence[float] | Floats, *, with_overhead: bool = True
) -> PowerLaw | None:
    """Fit the curve; None below three different lengths, or where a value is no positive number.

    An overhead takes a fourth length; with three there is none, whatever was asked.
    """
    lengths, points = np.asarray(seqlens, dtype=float), np.asarray(values, dtype=float)
    different = len(set(seqlens))
    if different < LEAST_LENGTHS or not _sane(lengths) or not _sane(points):
        return None
    with_overhead = with_overhead and different >= LEAST_LENGTHS_WITH_OVERHEAD
    longest = int(lengths.max())
    scale = float(points[lengths.argmax()])
    at, scaled = np.log(lengths / longest), points / scale
    freedom = len(points) - (3 if with_overhead else 2)
    exponents, squares, overheads, powers = _looked_closely(at, scaled, freedom, with_overhead)
    best = int(squares.argmin())
    exponent, least = float(exponents[best]), float(squares[best])
    low, high = _interval(exponents, squares, _allowed(least, freedom))
    overhead, power = float(overheads[best]), float(powers[best])
    variance = least / freedom
    slopes = _jacobian(overhead, power, exponent, at)[:, 0 if with_overhead else 1 :]
    return PowerLaw(
        overhead=overhead * scale,
        coefficient=power * scale / longest**exponent,
        exponent=exponent,
        exponent_low=low,
        exponent_high=high,
        shortest=int(lengths.min()),
        longest=longest,
        scatter=float(np.sqrt(variance)),
        degrees_of_freedom=freedom,
        covariance=tuple(map(tuple, (variance * np.linalg.pinv(slopes.T @ slopes)).tolist())),
        scale=scale,
    )


def _sane(numbers: Floats) -> bool:
    """Return whether all are positive numbers, and of sizes that one quantity can have."""
    return bool(
        (numbers > 0).all() and np.isfinite(numbers).all() and numbers.max() < _ABSURD * numbers.min()
    )


def _profile(
    exponents: Floats, at: Floats, values: Floats, with_overhead: bool
) -> tuple[Floats, Floats, Floats]:
    """Return for each exponent the least sum of squared log residuals, with its overhead and coefficient.

    ``at`` are logarithms of lengths over the longest one. Neither constant goes below 0. For a given exponent
    the curve is linear in them: weighted least squares, weighted anew by the curve that came out.
    """
    powers = np.exp(np.outer(exponents, at))
    curve = np.broadcast_to(values, powers.shape)
    overhead = coefficient = np.zeros(len(exponents))
    for _ in range(_REWEIGHTINGS):
        weight = 1 / curve**2
        of_powers, of_both = (weight * powers**2).sum(1), (weight * powers * values).sum(1)
        alone = of_both / of_powers
        overhead, coefficient = np.zeros_like(alone), alone
        if with_overhead:
            ones, mixed, with_values = weight.sum(1), (weight * powers).sum(1), (weight * values).sum(1)
            determinant = ones * of_powers - mixed**2
            singular = determinant <= 1e-12 * ones * of_powers
            determinant = np.where(singular, 1.0, determinant)
            constant = (with_values * of_powers - of_both * mixed) / determinant
            factor = (ones * of_both - mixed * with_values) / determinant
            inside = ~singular & (constant > 0) & (factor > 0)
            flat = ~singular & (factor <= 0)
            overhead = np.where(inside, constant, np.where(flat, with_values / ones, 0.0))
            coefficient = np.where(inside, factor, np.where(flat, 0.0, alone))
        curve = overhead[:, None] + coefficient[:, None] * powers
    return (np.log(values / curve) ** 2).sum(1), overhead, coefficient


def _looked_closely(
    at: Floats, values: Floats, freedom: int, with_overhead: bool
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return exponents, so close together that the interval holds many of them, and `_profile` of them."""
    low, high = LOWEST_EXPONENT, HIGHEST_EXPONENT
    for _ in range(_CLOSER_LOOKS):
        exponents = np.linspace(low, high, _TRIED)
        squares, overheads, powers = _profile(exponents, at, values, with_overhead)
        # What the best of these allows is at least what the best of all does: the interval is not cut.
        inside = np.flatnonzero(squares <= _allowed(float(squares.min()), freedom))
        first, last = int(inside[0]), int(inside[-1])
        if last - first >= _ENOUGH or squares.min() <= len(values) * _EXACT**2:
            break
        low, high = float(exponents[max(first - 1, 0)]), float(exponents[min(last + 1, _TRIED - 1)])
    return exponents, squares, overheads, powers


def _allowed(least: float, freedom: int) -> float:
    """Return the largest sum of squares that chance explains, beside the least one."""
    return least * (1 + _quantile(freedom) / freedom)


@cache
def _quantile(freedom: int) -> float:
    return float(stats.f.ppf(CONFIDENCE, 1, freedom))


def _interval(exponents: Floats, squares: Floats, allowed: float) -> tuple[float, float]:
    """Return where the profile crosses what is allowed, between the exponents that were tried."""
    inside = np.flatnonzero(squares <= allowed)
    first, last = int(inside[0]), int(inside[-1])
    low, high = float(exponents[first]), float(exponents[last])
    if first:
        low = _crossing(exponents, squares, first - 1, first, allowed)
    if last < len(exponents) - 1:
        high = _crossing(exponents, squares, last + 1, last, allowed)
    return low, high


def _crossing(exponents: Floats, squares: Floats, outside: int, inside: int, allowed: float) -> float:
    share = (allowed - squares[inside]) / (squares[outside] - squares[inside])
    return float(exponents[inside] + share * (exponents[outside] - exponents[inside]))


def _jacobian(overhead: float, power: float, exponent: float, at: Floats) -> Floats:
    """Return the slopes of the logarithm of the scaled curve in overhead, coefficient and exponent."""
    powers = np.exp(exponent * at)
    curve = overhead + power * powers
    return np.stack([1 / curve, powers / curve, power * powers * at / curve], axis=1)
