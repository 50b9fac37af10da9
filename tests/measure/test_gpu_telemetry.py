"""What a GPU did between its warm-up and the last sample, and what that says about the samples."""

import time
from dataclasses import replace

import pytest
import torch

from attnbench.device.nvml import GpuState
from attnbench.measure import telemetry
from attnbench.measure.telemetry import Observation, mean_power_w, observe
from attnbench.measure.verdicts import judge
from tests.device.fake_nvml import UUID, Card, install

CUDA = torch.device("cuda")
STEADY = [1.0, 1.001, 1.002] * 10


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    install(monkeypatch, card)
    monkeypatch.setattr(telemetry, "uuid_of", lambda device: UUID)
    return card


def verdict_of(seen: Observation) -> list[str]:
    quiet = replace(seen.activity, foreign_cpu_s=0.0, runqueue_wait_s=0.0, involuntary_switches=0)
    return judge(
        STEADY,
        quiet,
        threads=1,
        cores=2,
        throttle_reasons=seen.throttle_reasons,
        clock_drift=seen.clock_drift,
        other_processes=seen.other_processes,
    )


def test_an_idle_cards_clock_is_none_of_the_samples(card):
    """It idles at 345 MHz, and has its full clock when the warm-up is over."""
    card.sm_clock_mhz = 345
    with observe(CUDA) as seen:
        card.sm_clock_mhz = 1980
        seen.settled()
    assert seen.clock_drift == 0
    assert verdict_of(seen) == ["valid"]
    section = seen.section()
    assert (section.sm_clock_start_mhz, section.sm_clock_mhz) == (1980, 1980)


@pytest.mark.parametrize(
    ("end_mhz", "verdict"), [(1980, "valid"), (1890, "valid"), (1875, "throttled"), (2100, "throttled")]
)
def test_a_clock_that_moved_by_more_than_5_percent_is_not_one_speed(card, end_mhz, verdict):
    with observe(CUDA) as seen:
        seen.settled()
        card.sm_clock_mhz = end_mhz
    assert verdict_of(seen) == [verdict]


@pytest.mark.parametrize("counter", ["SW_POWER_CAP", "HW_THERM_SLOWDOWN"])
def test_a_throttle_counter_that_moved_is_named_and_one_that_moved_while_warming_up_is_not(card, counter):
    with observe(CUDA) as seen:
        card.throttled_ns[counter] += 1_000
        seen.settled()
    assert verdict_of(seen) == ["valid"]
    with observe(CUDA) as seen:
        seen.settled()
        card.throttled_ns[counter] += 1_000
    assert verdict_of(seen) == ["throttled"]
    expected = {"SW_POWER_CAP": "power_cap", "HW_THERM_SLOWDOWN": "hardware_thermal"}[counter]
    assert seen.section().throttle_reasons == [expected]


def test_another_process_on_the_card_makes_it_shared_even_if_it_has_gone_at_the_end(card):
    card.processes = [(4711, 1 << 30)]
    with observe(CUDA) as seen:
        seen.settled()
        card.processes = []
    assert seen.section().other_processes == 1
    assert verdict_of(seen) == ["shared"]


def test_power_is_the_mean_of_the_time_where_the_counter_can_tell_it(card, monkeypatch):
    with observe(CUDA) as seen:
        seen.settled()
        card.energy_mj += 120_000
        card.power_mw = 90_000
    assert seen.section().power_w == 90.0, "too short for the counter: the reading at the end"
    before, after = seen.gpu_before, seen.gpu_after
    assert before is not None
    assert after is not None
    longer = replace(after, read_s=before.read_s + 0.25)
    assert mean_power_w(before, longer) == pytest.approx(480.0)
    assert mean_power_w(replace(before, energy_j=None), longer) is None


def test_what_a_card_does_not_tell_is_claimed_by_nobody(card):
    card.sm_clock_mhz = card.energy_mj = card.power_mw = card.processes = None
    card.throttled_ns = {}
    with observe(CUDA) as seen:
        seen.settled()
    section = seen.section()
    assert section.sm_clock_mhz is section.power_w is None
    assert (section.throttle_reasons, section.other_processes) == (None, None), "not: none"
    assert section.temperature_c == 60
    assert seen.clock_drift is None
    assert verdict_of(seen) == ["valid"]


def test_a_state_says_when_it_was_read(card):
    from attnbench.device.nvml import gpu_state

    began = time.perf_counter()
    state = gpu_state(UUID)
    assert isinstance(state, GpuState)
    assert began <= state.read_s <= time.perf_counter()


@pytest.mark.gpu
def test_a_busy_card_tells_its_clock_and_its_power():
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    with observe(torch.device("cuda", torch.cuda.current_device())) as seen:
        for _ in range(50):
            x @ x
        torch.cuda.synchronize()
        seen.settled()
        until = time.perf_counter() + 1
        while time.perf_counter() < until:
            for _ in range(50):
                x @ x
            torch.cuda.synchronize()
    section = seen.section()
    assert section.sm_clock_start_mhz > 300
    assert section.sm_clock_mhz > 300
    assert section.power_w > 50
