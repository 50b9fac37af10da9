"""How long a sequence may be in a given memory."""

import pytest

from attnbench.analysis.facets import facets_of
from attnbench.analysis.frontier import GIB, Frontier, frontiers, longest_that_fits
from attnbench.analysis.rows import rows_of
from tests.analysis.synthetic import make_record, make_run

LENGTHS = [256, 512, 1024, 2048]


def found(peak, *, ooms=(), limit=None) -> list[Frontier]:
    records = [make_record("naive", n, peak_bytes=peak(n)) for n in LENGTHS if n not in ooms]
    records += [make_record("naive", n, status="oom", predicted_peak_bytes=peak(n)) for n in ooms]
    rows = rows_of({"run": make_run(records)})
    return list(frontiers(facets_of(rows), {"run": {"cpu": limit} if limit else {}}))


def test_the_longest_length_is_exact_for_sums_of_powers():
    def peak(n: int) -> int:
        return 5000 + 16384 * n + 96 * n * n

    (one,) = found(peak, limit=10 * GIB)
    fits = dict(one.fits)
    assert set(fits) == {10 * GIB, 24 * GIB, 80 * GIB, 141 * 10**9}
    for memory, longest in fits.items():
        assert peak(longest - 1) <= memory < peak(longest + 2)


def test_memory_in_proportion_to_the_length():
    (one,) = found(lambda n: 1000 * n)
    assert dict(one.fits)[24 * GIB] == pytest.approx(24 * GIB / 1000, abs=2)


def test_what_was_met_stands_beside_it():
    (one,) = found(lambda n: n * n, ooms=(1024, 2048))
    assert (one.longest_met, one.shortest_oom) == (512, 1024)


def test_peaks_that_do_not_follow_say_nothing():
    assert found(lambda n: {256: 5, 512: 500, 1024: 501, 2048: 40}[n]) == []


def test_a_kink_at_short_lengths_is_passed_over():
    (one,) = found(lambda n: 10**6 if n == 256 else 1000 * n)
    assert dict(one.fits)[24 * GIB] == pytest.approx(24 * GIB / 1000, abs=2)


def test_two_lengths_say_nothing():
    rows = rows_of({"run": make_run([make_record("naive", n, peak_bytes=n) for n in LENGTHS[:2]])})
    assert list(frontiers(facets_of(rows), {})) == []


def test_nothing_fits_where_the_constant_part_does_not():
    assert longest_that_fits((100.0, 1.0, 0.0), 50) is None
    assert longest_that_fits((100.0, 0.0, 0.0), 500) is None
    assert longest_that_fits((0.0, 0.0, 4.0), 400) == 10
