"""Energy of one call: the counter's growth over a second of calls, by a meter that is only arithmetic."""

from dataclasses import dataclass, replace

import pytest

from attnbench.device.limits import allowed_cores, in_ranges
from attnbench.measure.energy import LEAST_S, Meter, measure_energy
from attnbench.measure.pipeline import measure_case
from attnbench.measure.workload import Workload, build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

NAME = "telemetry.energy_per_call_j"
IDLE_W = 100.0


@dataclass
class FakeBoard:
    """A call takes its time and its energy; the counter moves in steps, and idling counts as well."""

    call_s: float = 0.001
    call_j: float = 0.5
    step_s: float = 0.02
    counts: bool = True
    now_s: float = 0.0
    used_j: float = 0.0
    calls: int = 0
    shown_j: float = 0.0
    shown_s: float = 0.0

    def call(self) -> None:
        self.calls += 1
        self.now_s += self.call_s
        self.used_j += self.call_j + IDLE_W * self.call_s
        if self.now_s - self.shown_s >= self.step_s:
            self.shown_j, self.shown_s = self.used_j, self.now_s

    def meter(self) -> Meter:
        return Meter(
            read_j=lambda: self.shown_j if self.counts else None,
            synchronize=lambda: None,
            clock=lambda: int(self.now_s * 1e9),
        )


def no_reasons() -> dict[str, str]:
    return {}


def workload_on(board: FakeBoard) -> Workload:
    return replace(build_workload(Case(implementation="naive", seqlen_q=16)), call=board.call)


@pytest.mark.parametrize("call_s", [0.00001, 0.001, 0.3, 2.5])
def test_a_known_energy_is_read(call_s):
    board, missing = FakeBoard(call_s=call_s, call_j=200 * call_s), no_reasons()
    joules = measure_energy(workload_on(board), missing, meter=board.meter())
    assert joules == pytest.approx((200 + IDLE_W) * call_s, rel=0.03), "the steps of the counter are in it"
    assert board.now_s >= LEAST_S
    assert missing == {}


def test_a_card_without_a_counter():
    board, missing = FakeBoard(counts=False), no_reasons()
    assert measure_energy(workload_on(board), missing, meter=board.meter()) is None
    assert missing == {NAME: "this GPU does not count its energy (before Volta, or a part of one)"}
    assert board.calls == 2, "no second of calls for nothing"


def test_what_prepares_a_call_would_count_too():
    board, missing = FakeBoard(), no_reasons()
    prepared = replace(workload_on(board), prepare=lambda: None)
    assert measure_energy(prepared, missing, meter=board.meter()) is None
    assert "calls can't follow each other" in missing[NAME]


def test_a_cpu_has_none():
    missing = no_reasons()
    assert measure_energy(build_workload(Case(implementation="naive", seqlen_q=16)), missing) is None
    assert missing == {NAME: "a processor's energy counters are for root alone"}


def test_a_record_says_so_and_has_no_latency_that_was_not_asked_for():
    record = measure_case(Case(implementation="naive", seqlen_q=16), MeasureSettings(metrics=("energy",)))
    assert record.status == "ok"
    assert record.latency is None
    assert record.unavailable[NAME] == "a processor's energy counters are for root alone"
    assert record.provenance.cores == in_ranges(allowed_cores())


@pytest.mark.gpu
def test_a_large_product_uses_hundreds_of_watts():
    workload = build_workload(
        Case(implementation="naive", seqlen_q=4096, batch=4, device="cuda", dtype="bfloat16")
    )
    missing = no_reasons()
    joules = measure_energy(workload, missing)
    if joules is None:
        pytest.skip(missing[NAME])
    assert 1e-4 < joules < 100
