"""What the machine is, and what is said about a device that is not there."""

import subprocess
import sys

import pytest

from attnbench.contract.errors import UsageError
from attnbench.device import hardware, nvml
from attnbench.device.gpm import supports_gpm


def test_the_processor():
    cpu = hardware.cpu()
    assert cpu.model
    assert 1 <= cpu.physical_cores <= cpu.logical_cores
    assert cpu.memory_bytes is not None
    assert cpu.memory_bytes > 1 << 28
    for size in (cpu.l2_bytes, cpu.l3_bytes):
        assert size is None or 1 << 15 <= size <= 1 << 34


@pytest.mark.parametrize(
    ("usable", "physical", "threads"), [(1, 1, 1), (2, 2, 1), (8, 2, 1), (3, 4, 2), (8, 8, 7), (128, 64, 16)]
)
def test_threads_leave_a_core_to_the_system(monkeypatch, usable, physical, threads):
    monkeypatch.setattr(hardware, "usable_cores", lambda: usable)
    monkeypatch.setattr(hardware, "physical_cores", lambda: list(range(physical)))
    chosen, why = hardware.default_threads()
    assert chosen == threads
    assert str(min(usable, physical)) in why


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cuda:", "unknown device 'cuda:'"),
        ("gpu", "unknown device 'gpu'"),
        ("cudo", "did you mean 'cuda'?"),
        ("cuda:-1", "unknown device"),
        ("CPU", "use cpu, cuda or cuda:i"),
        ("cuda:9999", "no device 'cuda:9999' on this machine; there is"),
    ],
)
def test_a_device_that_is_not_there(device, said):
    with pytest.raises(UsageError) as raised:
        hardware.require_device(device)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_there_is_instead_is_named(monkeypatch):
    monkeypatch.setattr(nvml, "gpu_uuids", lambda: ["GPU-a", "GPU-b"])
    monkeypatch.setattr(nvml, "gpu_facts", lambda uuid: {"name": f"Card {uuid[-1]}"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert [gpu.uuid for gpu in hardware.cuda_devices()] == ["GPU-b", "GPU-a"]
    assert hardware.require_device("cuda") == hardware.require_device("cuda:0")
    with pytest.raises(UsageError, match=r"there is cuda:0 \(Card b\), cuda:1 \(Card a\)"):
        hardware.require_device("cuda:2")


def test_the_processor_is_always_there():
    assert hardware.require_device("cpu") is None


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        (None, ["GPU-aa", "GPU-ab", "GPU-b"]),
        ("", []),
        ("2,0", ["GPU-b", "GPU-aa"]),
        ("0,7,1", ["GPU-aa"]),
        ("-1", []),
        ("GPU-ab", ["GPU-ab"]),
        ("GPU-a", []),
        ("GPU-b, 0", ["GPU-b", "GPU-aa"]),
        ("MIG-1234", ["MIG-1234"]),
    ],
)
def test_visible_devices_as_cuda_reads_them(setting, seen):
    assert nvml.visible(["GPU-aa", "GPU-ab", "GPU-b"], setting) == seen


def test_a_gpu_that_is_not_there_has_no_state():
    assert nvml.gpu_state("GPU-00000000-0000-0000-0000-000000000000") is None
    assert nvml.gpu_facts("GPU-00000000-0000-0000-0000-000000000000") == {}
    assert supports_gpm("GPU-00000000-0000-0000-0000-000000000000") is False


def state(**throttled: int) -> nvml.GpuState:
    return nvml.GpuState(
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        power_w=300.0,
        temperature_c=50,
        energy_j=1.0,
        throttled_ns=throttled,
        other_processes=0,
        used_bytes=0,
        total_bytes=1,
    )


def test_throttling_is_the_growth_of_a_counter():
    before, after = (
        state(power_cap=5, hardware_thermal=9),
        state(power_cap=8, hardware_thermal=9, power_brake=3),
    )
    assert nvml.throttle_reasons(before, after) == ["power_cap"]
    assert nvml.throttle_reasons(None, after) == nvml.throttle_reasons(before, None) == []


def test_asking_about_hardware_loads_no_torch_and_initialises_nothing():
    """E11: our process may ask what GPUs there are and still have workers that use them."""
    code = (
        "import sys; from attnbench.device import hardware; hardware.describe(); "
        "assert not {'torch', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
def test_a_gpu_is_described_without_cuda():
    gpu = hardware.require_device("cuda")
    assert gpu is not None
    assert gpu.facts["memory_bytes"] > 1 << 30
    now = nvml.gpu_state(gpu.uuid)
    assert now is not None
    assert now.sm_clock_mhz
    assert now.temperature_c
