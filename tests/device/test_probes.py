"""What can be measured here is tried, not assumed, and what can't says why."""

import os
import tempfile
from pathlib import Path

import pytest

from attnbench.device import cupti, hardware, nvml, probes


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "cuda_devices", list)
    monkeypatch.setattr(nvml, "unavailable_reason", lambda: "no NVIDIA driver: none")


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "cuda_devices", lambda: [hardware.CudaDevice(0, "GPU-a", "Card", {})])
    monkeypatch.setattr(nvml, "unavailable_reason", lambda: None)
    monkeypatch.setattr(probes, "_version", lambda package: "2.13.0+cu130")


@pytest.mark.parametrize(
    ("text", "root", "permitted"),
    [
        ("RmProfilingAdminOnly: 1\n", True, True),
        ("RmProfilingAdminOnly: 1\n", False, False),
        ("ResmanDebugLevel: 3\nRmProfilingAdminOnly: 0\n", False, True),
        ("Other: 1\n", False, True),
    ],
)
def test_permission_to_read_counters(tmp_path, monkeypatch, text, root, permitted):
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    parameters = tmp_path / "params"
    parameters.write_text(text, encoding="ascii")
    available, why = probes.counters_permitted(parameters)
    assert available is permitted
    assert permitted or "RmProfilingAdminOnly" in why


def test_no_driver_no_counters(tmp_path):
    assert probes.counters_permitted(tmp_path / "params") == (False, f"{tmp_path / 'params'} can't be read")


def test_what_is_missing_for_counters_is_named(no_gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes._reads_counters(probes._program("ncu")) == (
        False,
        "no NVIDIA driver: none; ncu is not on PATH",
    )


def test_with_everything_counters_can_be_read(a_gpu, monkeypatch, tmp_path):
    tool = tmp_path / "ncu"
    tool.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(probes, "counters_permitted", lambda: (True, ""))
    assert probes._reads_counters(probes._program("ncu")) == (True, "counters may be read")


def test_a_torch_without_cuda_can_use_no_gpu(a_gpu, monkeypatch):
    monkeypatch.setattr(probes, "_version", lambda package: "2.13.0+cpu")
    assert probes._needs_gpu("events") == (False, "torch 2.13.0+cpu was built without CUDA")


def test_gpm_needs_a_gpu_that_offers_it(a_gpu, monkeypatch):
    monkeypatch.setattr(nvml, "supports_gpm", lambda uuid: False)
    assert probes.gpm()[0] is False
    monkeypatch.setattr(nvml, "supports_gpm", lambda uuid: True)
    assert probes.gpm() == (True, "Card")


def test_a_kernel_that_fails_says_how(monkeypatch):
    available, why = probes._try_triton("neither", "it worked", {})
    assert not available
    assert "KeyError: 'neither'" in why


def test_the_combination_that_is_known_to_fail_is_named(monkeypatch):
    """Triton 3.6's interpreter fails with numpy 2.4: the reason says what to change."""
    found = {"triton": "3.6.0", "numpy": "2.4.1"}
    monkeypatch.setattr(probes, "_version", found.get)
    assert "needs numpy below 2.4" in probes._known_cause("interpret")
    assert probes._known_cause("compile") == ""
    found["numpy"] = "2.3.5"
    assert probes._known_cause("interpret") == ""


def test_probing_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    probes._try_triton("neither", "", {})
    assert list(Path(tmp_path).iterdir()) == []


def test_activity_records_need_a_gpu_and_a_cupti_that_fits(a_gpu, monkeypatch):
    monkeypatch.setattr(cupti, "refusal", lambda: "cupti-python is not installed")
    assert probes._records_activity() == (False, "cupti-python is not installed")
    monkeypatch.setattr(cupti, "refusal", lambda: None)
    assert probes._records_activity() == (True, "when each kernel began and ended")


def test_without_a_gpu_both_are_missing(no_gpu, monkeypatch):
    monkeypatch.setattr(cupti, "refusal", lambda: "cupti-python is not installed")
    said = "no NVIDIA driver: none; cupti-python is not installed"
    assert probes._records_activity() == (False, said)


def test_energy_needs_a_gpu_that_counts_it(a_gpu, monkeypatch):
    monkeypatch.setattr(nvml, "energy_j", lambda uuid: None)
    assert probes.energy() == (False, "no GPU here counts its energy (Volta and later do)")
    monkeypatch.setattr(nvml, "energy_j", lambda uuid: 12.0)
    assert probes.energy() == (True, "Card")
