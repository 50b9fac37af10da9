"""What can be measured here is tried, not assumed, and what can't says why."""

import tempfile
from pathlib import Path

import pytest

from attnbench.device import cupti, hardware, nvml, probes
from attnbench.device.requirements import Finding

NO_GPU = Finding(False, "no NVIDIA driver: none")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "cuda_devices", list)
    monkeypatch.setattr(probes, "cuda_gpu", lambda detail: NO_GPU)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "cuda_devices", lambda: [hardware.CudaDevice(0, "GPU-a", "Card", {})])
    monkeypatch.setattr(probes, "cuda_gpu", lambda detail: Finding(True, detail))


def test_a_kernel_that_fails_says_how(monkeypatch):
    finding = probes._try_triton("neither", "it worked", {})
    assert not finding.available
    assert "KeyError: 'neither'" in finding.detail


def test_the_combination_that_is_known_to_fail_is_named(monkeypatch):
    """Triton 3.6's interpreter fails with numpy 2.4: the reason says what to change."""
    found = {"triton": "3.6.0", "numpy": "2.4.1"}
    monkeypatch.setattr(probes, "version_of", found.get)
    cause, fix = probes._known_cause("interpret")
    assert "needs numpy below 2.4" in cause
    assert fix == "pip install 'numpy<2.4'"
    assert probes._known_cause("compile") == ("", None)
    found["numpy"] = "2.3.5"
    assert probes._known_cause("interpret") == ("", None)


def test_probing_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    probes._try_triton("neither", "", {})
    assert list(Path(tmp_path).iterdir()) == []


def test_activity_records_need_a_gpu_and_a_cupti_that_fits(a_gpu, monkeypatch):
    monkeypatch.setattr(cupti, "refusal", lambda: "cupti-python is not installed")
    assert probes._records_activity()[:2] == (False, "cupti-python is not installed")
    monkeypatch.setattr(cupti, "refusal", lambda: None)
    assert probes._records_activity()[:2] == (True, "when each kernel began and ended")


def test_without_a_gpu_both_are_missing(no_gpu, monkeypatch):
    monkeypatch.setattr(cupti, "refusal", lambda: "cupti-python is not installed")
    said = "no NVIDIA driver: none; cupti-python is not installed"
    assert probes._records_activity()[:2] == (False, said)


def test_energy_needs_a_gpu_that_counts_it(a_gpu, monkeypatch):
    monkeypatch.setattr(nvml, "energy_j", lambda uuid: None)
    assert probes.energy()[:2] == (False, "no GPU here counts its energy (Volta and later do)")
    monkeypatch.setattr(nvml, "energy_j", lambda uuid: 12.0)
    assert probes.energy()[:2] == (True, "Card")
