"""The fit of overhead and power: exact on exact data, honest about its interval on noisy data."""

from collections.abc import Callable

import numpy as np
import pytest

from attnbench.analysis.power_law import HIGHEST_EXPONENT, LOWEST_EXPONENT, fit_power_law

LENGTHS = [2**power for power in range(8, 16)]
DRAWS = 500
Noise = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def by_sample(random: np.random.Generator, curve: np.ndarray) -> np.ndarray:
    """Medians of 50 samples, each 5 % off."""
    return np.median(curve[:, None] * (1 + 0.05 * random.standard_normal((len(curve), 50))), axis=1)


def by_length(random: np.random.Generator, curve: np.ndarray) -> np.ndarray:
    """Each length 5 % off, however often it is sampled."""
    return curve * (1 + 0.05 * random.standard_normal(len(curve)))


def curve_of(exponent: float, overhead_until: int) -> np.ndarray:
    """A power of the length, beside an overhead that is as large at ``overhead_until`` (0: none)."""
    lengths = np.array(LENGTHS, dtype=float)
    return (lengths / 2048) ** exponent + ((overhead_until / 2048) ** exponent if overhead_until else 0.0)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("overhead", [0.0, 7.0])
def test_exact_data_give_the_curve_itself(exponent, overhead):
    fit = fit_power_law(LENGTHS, [overhead + 1e-3 * n**exponent for n in LENGTHS])
    assert fit.exponent == pytest.approx(exponent, abs=1e-6)
    assert fit.exponent_high - fit.exponent_low < 1e-6
    assert fit.overhead == pytest.approx(overhead, rel=1e-5, abs=1e-6)
    assert (fit.shortest, fit.longest, fit.degrees_of_freedom) == (256, 32768, 5)
    assert fit.value_at(1024) == pytest.approx(overhead + 1e-3 * 1024**exponent)


@pytest.mark.parametrize("noise", [by_sample, by_length])
@pytest.mark.parametrize("overhead_until", [0, LENGTHS[3]])
@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0])
@pytest.mark.long
def test_the_interval_covers_the_truth_as_often_as_it_says(exponent, overhead_until, noise):
    random = np.random.default_rng(20)
    curve = curve_of(exponent, overhead_until)
    fits = [fit_power_law(LENGTHS, noise(random, curve)) for _ in range(DRAWS)]
    covered = sum(fit.exponent_low <= exponent <= fit.exponent_high for fit in fits)
    assert covered >= 0.93 * DRAWS
    widths = [fit.exponent_high - fit.exponent_low for fit in fits]
    assert np.median(widths) < (0.25 if noise is by_length else 0.05), "an interval that says something"


def test_an_overhead_is_told_from_a_flat_power():
    """A log-log slope over all lengths would say 0.8 of this quadratic curve."""
    random = np.random.default_rng(3)
    points = by_length(random, curve_of(2.0, 8192))
    slope = np.polyfit(np.log(LENGTHS), np.log(points), 1)[0]
    fit = fit_power_law(LENGTHS, points)
    assert slope < 1.0
    assert fit.exponent_low < 2.0 < fit.exponent_high
    assert fit.exponent_low > 1.5


def test_three_lengths_have_no_overhead_and_two_have_no_fit():
    fit = fit_power_law([256, 512, 1024], [5 + 1.0, 5 + 2.0, 5 + 4.0])
    assert fit.overhead == 0.0
    assert fit.degrees_of_freedom == 1
    assert fit.exponent_low < fit.exponent < fit.exponent_high
    assert fit_power_law([256, 512], [1.0, 2.0]) is None
    assert fit_power_law([256, 256, 512], [1.0, 1.1, 2.0]) is None


def test_a_scattered_or_constant_quantity_has_no_exponent():
    random = np.random.default_rng(4)
    scattered = fit_power_law(LENGTHS[:5], np.exp(random.standard_normal(5)))
    assert not scattered.determined
    constant = fit_power_law(LENGTHS, [7.0] * 8)
    assert (constant.exponent_low, constant.exponent_high) == (LOWEST_EXPONENT, HIGHEST_EXPONENT)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-300])
def test_what_is_no_measurement_is_not_fitted(bad):
    assert fit_power_law(LENGTHS[:4], [1.0, 2.0, bad, 8.0]) is None


def test_units_do_not_matter():
    random = np.random.default_rng(5)
    points = by_length(random, curve_of(1.5, 1024))
    one, other = fit_power_law(LENGTHS, points), fit_power_law(LENGTHS, points * 1e9)
    assert other.exponent_low == pytest.approx(one.exponent_low)
    assert other.overhead == pytest.approx(one.overhead * 1e9)
    assert other.log_error_at(4096) == pytest.approx(one.log_error_at(4096))


@pytest.mark.long
def test_the_error_of_the_curve_is_as_large_as_it_says():
    random = np.random.default_rng(6)
    curve = curve_of(2.0, 2048)
    fits = [fit_power_law(LENGTHS, by_length(random, curve)) for _ in range(DRAWS)]
    for seqlen, truth in zip(LENGTHS, curve, strict=True):
        off = np.std([np.log(fit.value_at(seqlen) / truth) for fit in fits])
        said = np.sqrt(np.mean([fit.log_error_at(seqlen)[0] ** 2 for fit in fits]))
        assert said == pytest.approx(off, rel=0.2)
