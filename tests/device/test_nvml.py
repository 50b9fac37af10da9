"""What NVML tells of a GPU, read from a card that is only a table."""

import os

import pytest

from attnbench.device import nvml
from tests.device.fake_nvml import UUID, Card, install

PID = os.getpid()


def test_a_state_is_read_field_by_field(monkeypatch):
    fake = install(monkeypatch, Card(processes=[(7, 1 << 30)]))
    state = nvml.gpu_state(UUID)
    assert (state.sm_clock_mhz, state.memory_clock_mhz) == (1980, 3201)
    assert (state.power_w, state.temperature_c, state.energy_j) == (500.0, 60, 1000.0)
    assert state.throttled_ns == {"power_cap": 0, "hardware_thermal": 0}, "two are not counted by this card"
    assert state.other_processes == 1
    assert (state.used_bytes, state.total_bytes) == (1 << 30, 139 << 30)
    assert fake.open == 0, "what was started is shut down"


@pytest.mark.parametrize(
    "missing", ["sm_clock_mhz", "memory_clock_mhz", "power_mw", "temperature_c", "energy_mj", "processes"]
)
def test_a_reading_that_a_card_lacks_costs_nothing_else(monkeypatch, missing):
    install(monkeypatch, Card(**{missing: None}))
    state = nvml.gpu_state(UUID)
    name = {"power_mw": "power_w", "energy_mj": "energy_j", "processes": "other_processes"}.get(
        missing, missing
    )
    assert getattr(state, name) is None
    assert state.used_bytes == 1 << 30


def test_a_name_in_no_encoding_is_no_name(monkeypatch):
    fake = install(monkeypatch, Card())
    monkeypatch.setattr(fake, "nvmlDeviceGetName", lambda handle: b"NVIDIA \xff".decode(), raising=False)
    assert nvml.gpu_facts(UUID)["name"] is None
    assert nvml.gpu_facts(UUID)["memory_bytes"] == 139 << 30
    assert fake.open == 0


def test_energy_is_told_in_joules_or_not_at_all(monkeypatch):
    install(monkeypatch, Card(energy_mj=2_500))
    assert nvml.energy_j(UUID) == 2.5
    install(monkeypatch, Card(energy_mj=None))
    assert nvml.energy_j(UUID) is None
    assert nvml.energy_j("GPU-another") is None


@pytest.mark.parametrize(
    ("processes", "told"),
    [
        ([(1, 5 << 20), (PID, 600 << 20)], 600 << 20),
        ([(PID, 0)], 0),
        (
            [(1, 5 << 20)],
            "NVML does not list this process by its id here, as in a container with ids of its own",
        ),
        ([], "NVML does not list this process by its id here, as in a container with ids of its own"),
        ([(PID, None)], "the driver does not tell the memory of a process"),
        (None, "NVML does not list the processes of this GPU"),
    ],
)
def test_the_memory_of_this_process(monkeypatch, processes, told):
    install(monkeypatch, Card(processes=processes))
    assert nvml.process_bytes(UUID, PID) == told


def test_without_a_driver_the_reason_is_the_drivers():
    if nvml.unavailable_reason() is None:
        pytest.skip("there is a driver here")
    assert nvml.process_bytes(UUID, PID) == nvml.unavailable_reason()
    assert nvml.energy_j(UUID) is None
