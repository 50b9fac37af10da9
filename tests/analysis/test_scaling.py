"""Growth findings: counts are held to theory's secants, latencies to the interval of a fit."""

import numpy as np
import pytest

from attnbench.analysis.facets import facets_of
from attnbench.analysis.metrics import LATENCY, OPERAND_BYTES, PEAK_MEMORY
from attnbench.analysis.rows import rows_of
from attnbench.analysis.scaling import Scaling, scalings
from tests.analysis.synthetic import make_record, make_run

LENGTHS = [256, 512, 1024, 2048, 4096]


def found(metric, *records) -> list[Scaling]:
    rows = rows_of({"run": make_run(list(records))})
    return [one for one in scalings(facets_of(rows)) if one.metric is metric]


def counted(seqlen: int, operand_bytes: int, theory: int | None):
    record = make_record("naive", seqlen, operand_bytes=operand_bytes)
    record.theory = None if theory is None else {"operand_bytes": theory}
    return record


def timed(seqlen: int, latency_ms: float, flops: int, **keys):
    record = make_record("linear", seqlen, latency_ms=latency_ms, **keys)
    record.theory = {"executed_flops": flops}
    return record


def test_counts_with_a_lower_term_agree_by_their_secants():
    (one,) = found(OPERAND_BYTES, *(counted(n, n * n + 500 * n, n * n + 500 * n) for n in LENGTHS))
    assert (one.verdict, one.difference) == ("agrees", 0.0)
    assert [secant.exponent for secant in one.secants] == [secant.theory for secant in one.secants]
    assert one.secants[0].exponent < 1.5 < 1.8 < one.secants[-1].exponent < 2
    assert one.fit.exponent == pytest.approx(one.theory)


def test_a_count_that_grows_faster_than_theory_stands_out_even_between_two_lengths():
    (one,) = found(OPERAND_BYTES, counted(256, 100, 100), counted(512, 400, 200))
    assert one.verdict == "differs"
    assert one.difference == pytest.approx(1.0)
    assert one.stands_out
    (other,) = found(OPERAND_BYTES, counted(256, 1000, 1000), counted(512, 2050, 2000))
    assert other.verdict == "differs"
    assert not other.stands_out


def test_declared_linear_and_measured_almost_quadratic_stands_out():
    (one,) = found(LATENCY, *(timed(n, 1e-6 * n**1.9, n) for n in LENGTHS))
    assert one.verdict == "differs"
    assert one.difference == pytest.approx(0.9, abs=1e-3)
    assert one.stands_out


def test_a_noisy_latency_agrees_where_its_interval_holds_theory():
    random = np.random.default_rng(2)
    times = [(0.5 + 1e-6 * n**2) * (1 + 0.03 * random.standard_normal()) for n in LENGTHS]
    points = [timed(n, ms, n * n) for n, ms in zip(LENGTHS, times, strict=True)]
    (one,) = found(LATENCY, *points)
    assert one.verdict == "agrees"
    assert one.fit.exponent_low < 2 < one.fit.exponent_high
    assert one.fit.overhead > 0


def test_what_can_not_be_said_is_said_to_be_so():
    (two,) = found(LATENCY, *(timed(n, n / 100, n) for n in LENGTHS[:2]))
    assert (two.verdict, two.fit) == ("too few lengths", None)
    (flat,) = found(LATENCY, *(timed(n, 1.0, n) for n in LENGTHS))
    assert flat.verdict == "undetermined"
    (nothing,) = found(OPERAND_BYTES, *(counted(n, n, None) for n in LENGTHS))
    assert nothing.verdict == "no theory"
    assert found(PEAK_MEMORY, counted(256, 5, 5)) == []


def test_doubts_of_the_latencies_are_carried_along():
    (one,) = found(LATENCY, *(timed(n, n / 100, n, verdict=("noisy", "shared")) for n in LENGTHS))
    assert one.doubts == ("noisy", "shared")
