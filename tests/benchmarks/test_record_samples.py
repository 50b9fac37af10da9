"""What profilers wrote is kept so that it reads the same later, and what was recorded in fact still does."""

import json
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.device.hardware import CudaDevice
from attnbench.device.requirements import Finding
from attnbench.measure.dram import cupti_pm, ncu, nvml_gpm, rocprofv3
from attnbench.measure.dram.choose import BACKENDS
from benchmarks import record_samples as recording
from tests.measure.dram.fakes import ANSWERS, SAMPLES, put_on_path, sample, small_job, writes
from tests.measure.dram.test_cupti_pm import LIBRARY
from tests.measure.dram.test_nvml_gpm import install, library

__all__ = ["install"]
GPU = CudaDevice(0, "GPU-1", "NVIDIA H200", {"driver": "575.57", "compute_capability": "9.0"})
ROCPROF = """
if args != ['--version']:
    folder = args[args.index('--output-directory') + 1]
    os.makedirs(folder)
    import shutil
    shutil.copy({sample!r}, os.path.join(folder, 'dram_counter_collection.csv'))
    {answers}
else:
    print('version: 1.1.0')
"""
VERSION = "if args == ['--version']:\n    print('NVIDIA (R) Nsight\\nVersion 2025.3.1.0'); sys.exit()\n"


@pytest.fixture
def hopeful(monkeypatch):
    for backend in BACKENDS:
        monkeypatch.setattr(backend, "probe", lambda: Finding(True, "made up"))


def recorded(folder: Path) -> dict[str, dict[str, Any]]:
    job = small_job(resident_bytes=100)
    index = json.loads(recording.record_samples(folder, GPU, job).read_text(encoding="utf-8"))
    assert index["recorded"] is True
    assert (index["device"], index["facts"]["driver"]) == ("NVIDIA H200", "575.57")
    assert index["call"] == {"read_bytes": 50, "write_bytes": 50}
    assert [one["backend"] for one in index["samples"]] == [backend.NAME for backend in BACKENDS]
    return {one["backend"]: one for one in index["samples"]}


def test_what_tools_wrote_reads_the_same_later(tmp_path, monkeypatch, hopeful, install):
    install(library(25.0))
    tools = tmp_path / "tools"
    tools.mkdir()
    put_on_path(tools, "ncu", VERSION + writes("ncu-elementwise.csv"), monkeypatch)
    script = ROCPROF.format(sample=str(SAMPLES / "rocprofv3-counter_collection.csv"), answers=ANSWERS.strip())
    put_on_path(tools, "rocprofv3", script, monkeypatch)
    # The child of PM sampling is replaced by what it answers: its windows are in the next test.
    answer = {
        "bytes": {"bytes": 30},
        "windows": {"metrics": ["dram__bytes.sum"], "empty": [[2.0]], "full": [[32.0]]},
    }
    monkeypatch.setattr(cupti_pm, "answer_of", lambda path: answer)
    monkeypatch.setattr(cupti_pm, "read_file", lambda path: json.dumps(answer))
    monkeypatch.setattr(cupti_pm, "run_profiler", lambda command, timeout_s, folder: "")
    folder = tmp_path / "recorded" / "nvidia-h200"
    found = recorded(folder)
    assert found["ncu"]["tool"] == "Version 2025.3.1.0"
    assert found["rocprofv3"]["tool"] == "version: 1.1.0"
    assert found["nvml-gpm"]["tool"] == "575.57"
    assert found["ncu"]["found"]["read_bytes"] == 58_732_000
    for name, one in found.items():
        assert one["reason"] is None
        assert recording.replayed(folder, one).to_dict() == one["found"], name
    assert sample("ncu-elementwise.csv") in (folder / "ncu.csv").read_text(encoding="utf-8")


def test_what_was_refused_is_kept_as_refused(tmp_path, monkeypatch, hopeful):
    monkeypatch.setattr(cupti_pm, "probe", lambda: Finding(False, "cupti-python is not installed"))
    for backend in (rocprofv3, nvml_gpm):
        monkeypatch.setattr(backend, "probe", lambda: Finding(False, "no such GPU"))
    put_on_path(tmp_path, "ncu", VERSION + writes("ncu-forbidden.txt"), monkeypatch)
    found = recorded(tmp_path / "out")
    assert found["ncu"]["found"] is None
    assert found["ncu"]["files"] == ["ncu-failed.csv"]
    assert "reserves counters" in found["ncu"]["reason"]
    assert "ERR_NVGPUCTRPERM" in (tmp_path / "out" / "ncu-failed.csv").read_text(encoding="utf-8")
    assert found["cupti-pm"] == {
        "backend": "cupti-pm",
        "tool": None,
        "files": [],
        "found": None,
        "reason": "cupti-python is not installed",
    }


def test_a_gpu_is_found_by_what_is_its_own(monkeypatch):
    uuids = ["2", "1"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index]))
    assert recording.device_of(GPU) == "cuda:1"


def test_neither_home_nor_host_is_kept(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setattr(platform, "node", lambda: "box-17")
    text = '==PROF== Connected to process 7 (/home/somebody/.venv/bin/python3.11)\n"0","7","python","box-17"'
    assert recording.nameless(text) == (
        '==PROF== Connected to process 7 (~/.venv/bin/python3.11)\n"0","7","python","host"'
    )


@pytest.mark.long
def test_windows_come_out_of_the_process_that_counted_them(tmp_path, monkeypatch):
    (tmp_path / "cupti").mkdir()
    (tmp_path / "cupti" / "__init__.py").touch()
    text = LIBRARY.format(enable="pass", windows=cupti_pm.WINDOWS)
    (tmp_path / "cupti" / "pm_sampling.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    kept: dict[str, str] = {}
    found = cupti_pm.measure(small_job(keep=kept.__setitem__), 120)
    assert (found.read, found.write) == (700, 300)
    windows = json.loads(kept["cupti-pm.json"])["windows"]
    assert windows["metrics"] == ["dram__bytes_read.sum", "dram__bytes_write.sum"]
    assert windows["full"] == [[700.0, 300.0]] * cupti_pm.WINDOWS
    assert recording.READERS["cupti-pm"](kept["cupti-pm.json"]) == found


@pytest.mark.parametrize(
    "index", sorted(SAMPLES.glob("recorded/*/recorded.json")), ids=lambda path: path.parent.name
)
def test_recordings_of_real_devices_read_as_they_did(index):
    plain = json.loads(index.read_text(encoding="utf-8"))
    assert plain["recorded"]
    for one in plain["samples"]:
        if one["found"] is None:
            assert one["reason"]
        else:
            assert recording.replayed(index.parent, one).to_dict() == one["found"]
            assert one["tool"]


def test_every_backend_has_a_reader():
    assert list(recording.READERS) == [backend.NAME for backend in BACKENDS]
    assert recording.READERS["ncu"] is ncu.parse
