"""What a record says of the tiles that ran, and when they are chosen."""

import dataclasses

import pytest

from attnbench.contract.discovery import get_implementation
from attnbench.measure.pipeline import measure_case
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

SETTINGS = MeasureSettings(metrics=("agreement",))


@pytest.mark.parametrize(("mode", "kernels"), [("fwd", ["forward"]), ("fwd_bwd", ["forward", "dq", "dkdv"])])
def test_a_record_holds_the_tiles_that_ran(mode, kernels):
    """E15: where the winner of a contest differs between runs, so do times and bits."""
    case = Case(implementation="triton-flash", seqlen_q=32, head_dim=16, mode=mode, options={"block_q": 16})
    record = measure_case(case, SETTINGS)
    assert record.status == "ok", record.reason
    assert list(record.provenance.autotune["attention"]) == kernels
    assert {tile["block_q"] for tile in record.provenance.autotune["attention"].values()} == {16}


def test_a_record_of_decoding_holds_tile_and_splits():
    case = Case(
        implementation="triton-flash",
        seqlen_q=1,
        seqlen_k=64,
        head_dim=16,
        mode="decode",
        options={"num_splits": 2},
    )
    assert measure_case(case, SETTINGS).provenance.autotune["attention"]["decode"]["num_splits"] == 2


def test_what_has_no_kernels_has_no_tiles():
    assert measure_case(Case(implementation="naive", seqlen_q=8), SETTINGS).provenance.autotune == {}


def test_tiles_are_chosen_before_anything_is_counted_or_timed(monkeypatch):
    events = []

    def told(name, function):
        def tell(*given, **named):
            events.append(name)
            return function(*given, **named)

        return tell

    naive = get_implementation("naive")
    watched = dataclasses.replace(
        naive,
        configuration=told("configuration", naive.configuration),
        cost=told("cost", naive.cost),
        attention=told("attention", naive.attention),
    )
    monkeypatch.setattr("attnbench.measure.attentions.get_implementation", lambda name: watched)
    assert measure_case(Case(implementation="naive", seqlen_q=8), SETTINGS).status == "ok"
    assert events[:3] == ["configuration", "cost", "attention"]
    assert events.count("configuration") == 1
