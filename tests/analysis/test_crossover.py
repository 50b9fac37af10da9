"""Where curves meet: found, with an interval that covers the truth, and marked where it is a guess."""

import numpy as np
import pytest

from attnbench.analysis.crossover import crossover
from attnbench.analysis.power_law import PowerLaw, fit_power_law
from tests.analysis.test_power_law import DRAWS, LENGTHS, by_length, by_sample


def fitted(exponent: float, factor: float = 1.0, overhead: float = 0.0) -> PowerLaw:
    """The fit of exact data."""
    return fit_power_law(LENGTHS, [factor * (n / 2048) ** exponent + overhead for n in LENGTHS])


def test_curves_that_meet_between_lengths_are_bracketed():
    found = crossover(fitted(2.0), fitted(1.0, factor=3.0))
    assert found.seqlen == pytest.approx(3 * 2048, rel=1e-4)
    assert found.kind == "bracketed"
    assert not found.first_wins_after
    assert crossover(fitted(1.0, factor=3.0), fitted(2.0)).first_wins_after
    assert found.low == pytest.approx(found.seqlen, rel=0.02)
    assert found.high == pytest.approx(found.seqlen, rel=0.02)


def test_beyond_the_lengths_it_is_a_guess_and_far_beyond_there_is_none():
    assert crossover(fitted(2.0), fitted(1.0, factor=64.0)).kind == "extrapolated"
    assert crossover(fitted(2.0), fitted(1.0, factor=1e4)) is None
    assert crossover(fitted(2.0), fitted(2.0, factor=2.0)) is None


def test_curves_that_can_not_be_told_apart_have_an_open_end():
    random = np.random.default_rng(1)
    lengths = np.array(LENGTHS, dtype=float)
    first = fit_power_law(LENGTHS, by_length(random, 1.0 + (lengths / 2048) ** 1.02))
    second = fit_power_law(LENGTHS, by_length(random, 1.0 + (lengths / 2048) ** 0.98))
    found = crossover(first, second)
    assert found is None or found.low is None or found.high is None


@pytest.mark.parametrize("noise", [by_sample, by_length])
@pytest.mark.parametrize("overhead", [0.0, 1.0])
@pytest.mark.parametrize(("first", "second"), [(2.0, 1.0), (1.5, 1.0), (2.0, 1.5)])
@pytest.mark.parametrize("place", [8192, 65536])
@pytest.mark.long
def test_the_interval_covers_the_truth(first, second, overhead, noise, place):
    random = np.random.default_rng(7)
    lengths = np.array([*LENGTHS, place], dtype=float)
    one = (lengths / 2048) ** first + overhead
    other = (lengths / 2048) ** second + overhead
    other *= one[-1] / other[-1]
    covered, kinds = 0, set()
    for _ in range(DRAWS):
        found = crossover(
            fit_power_law(LENGTHS, noise(random, one[:-1])), fit_power_law(LENGTHS, noise(random, other[:-1]))
        )
        assert found is not None
        covered += (found.low or 0.0) <= place <= (found.high or np.inf)
        kinds.add(found.kind)
    assert covered >= 0.93 * DRAWS
    assert kinds == {"bracketed" if place < LENGTHS[-1] else "extrapolated"}
