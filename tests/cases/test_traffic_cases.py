"""Cases of bytes that were measured and judged wrongly elsewhere."""

import pytest

from attnbench.measure.dram.audit import audit, verdict
from attnbench.measure.dram.backend import DramBytes
from attnbench.measure.dram.trial import judged

ELEMENTWISE = 2048 * 14336 * 2
"""Bytes that a float16 operation on a 2048 × 14336 matrix reads, and that it writes."""


def measured(read_ratio: float, write_ratio: float) -> DramBytes:
    return DramBytes(read=round(read_ratio * ELEMENTWISE), write=round(write_ratio * ELEMENTWISE))


def test_b15_writes_that_come_later_do_not_make_a_model_wrong():
    """tile-ai/TileOPs PR#1996: of 58,720,256 bytes each way the counters saw 1.0002 and 0.63 parts."""
    assert ELEMENTWISE == 58_720_256
    found = measured(1.0002, 0.63)
    compared = audit(found, ELEMENTWISE, ELEMENTWISE)
    assert compared.read_ratio == pytest.approx(1.0002, abs=1e-6)
    assert compared.write_ratio == pytest.approx(0.63, abs=1e-6)
    assert compared.agrees
    assert compared.exceeds
    assert verdict(found, ELEMENTWISE) == "valid"
    assert judged(found, ELEMENTWISE) == (
        True,
        "counted 1.000 of the bytes that a known call reads, 0.630 of those it writes",
        None,
    )


@pytest.mark.parametrize("write_ratio", [0.0, 0.63, 1.0, 3.0])
def test_b15_writes_are_never_judged(write_ratio):
    assert audit(measured(1.0, write_ratio), ELEMENTWISE, ELEMENTWISE).agrees
    assert verdict(measured(1.0, write_ratio), ELEMENTWISE) == "valid"
    assert not audit(measured(0.9, write_ratio), ELEMENTWISE, ELEMENTWISE).agrees
    assert verdict(measured(0.9, write_ratio), ELEMENTWISE) == "implausible"


def test_b15_reads_beyond_the_model_are_wrong_and_beyond_the_minimum_are_not():
    twice = measured(2.0, 1.0)
    assert not audit(twice, ELEMENTWISE, ELEMENTWISE).agrees
    assert verdict(twice, ELEMENTWISE) == "valid"


def test_b15_without_reads_there_is_no_judgement():
    assert audit(DramBytes(total=5), 1, 1).read_ratio is None
    assert not audit(DramBytes(total=5), 1, 1).agrees
    assert verdict(DramBytes(total=5), ELEMENTWISE) is None
    assert verdict(measured(0.5, 0.5), None) is None
