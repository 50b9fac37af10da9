"""What a backend needs: what is there, what is missing, and the command that would change it."""

import pytest

from attnbench.device import nvml, requirements
from attnbench.device.hardware import CudaDevice
from attnbench.device.requirements import Finding, all_of, amd_gpu, cuda_gpu, installed, on_path


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "unavailable_reason", lambda: None)
    monkeypatch.setattr(nvml, "gpu_uuids", lambda: ["GPU-a"])
    monkeypatch.setattr(requirements, "cuda_devices", lambda: [CudaDevice(0, "GPU-a", "Card", {})])
    monkeypatch.setattr(requirements, "version_of", lambda package: "2.13.0+cu130")


def test_packages_and_programs():
    assert installed("pytest").available
    assert installed("cupti_none", "cupti-none") == (
        False,
        "cupti-none is not installed",
        "pip install cupti-none",
    )
    assert on_path("sh") == (True, "on PATH", None)
    assert on_path("no-such-program", "make it") == (False, "no-such-program is not on PATH", "make it")


def test_a_gpu_and_a_torch_for_it(a_gpu):
    assert cuda_gpu("events") == (True, "events", None)


def test_a_torch_without_cuda_can_use_no_gpu(a_gpu, monkeypatch):
    monkeypatch.setattr(requirements, "version_of", lambda package: "2.13.0+cpu")
    assert cuda_gpu("events") == (
        False,
        "torch 2.13.0+cpu was built without CUDA",
        "pip install --force-reinstall torch==2.13.0",
    )


def test_hidden_gpus_and_none(a_gpu, monkeypatch):
    monkeypatch.setattr(requirements, "cuda_devices", list)
    assert cuda_gpu("events").fix == "unset CUDA_VISIBLE_DEVICES"
    monkeypatch.setattr(nvml, "gpu_uuids", list)
    assert cuda_gpu("events") == (False, "the NVIDIA driver finds no GPU", None)


def test_without_a_driver_no_command_helps(monkeypatch):
    monkeypatch.setattr(nvml, "unavailable_reason", lambda: "no NVIDIA driver: none")
    assert cuda_gpu("events") == (False, "no NVIDIA driver: none", None)


def test_an_amd_gpu_that_may_not_be_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(requirements, "AMD_DRIVER", tmp_path / "kfd")
    assert amd_gpu() == (False, f"no AMD GPU ({tmp_path / 'kfd'} does not exist)", None)
    (tmp_path / "kfd").touch()
    assert amd_gpu().available
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert amd_gpu().fix == "sudo usermod -a -G render,video $LOGNAME"


def test_several_needs():
    there, last = Finding(True, "x"), Finding(True, "all of it")
    first, second = Finding(False, "no a", "get a"), Finding(False, "no b", "get b")
    assert all_of(there, last) == last
    assert all_of(first, there, second, last) == (False, "no a; no b", "get a && get b")


def test_a_container_that_must_be_started_anew_comes_first():
    tool = Finding(False, "no a", "get a")
    permission = Finding(False, "no b", "docker run --cap-add=PERFMON IMAGE")
    assert all_of(tool, permission).fix == permission.fix


def test_what_no_command_can_change_is_named_alone():
    hopeless = Finding(False, "no GPU")
    assert all_of(Finding(False, "no a", "get a"), hopeless, Finding(True, "")) == hopeless
