"""Who may read a GPU's counters, and what those are told who may not."""

from pathlib import Path

import pytest

from attnbench.device import counters
from attnbench.device.hardware import CudaDevice

NONE, PERFMON, SYS_ADMIN, ROOT = 0, 1 << 38, 1 << 21, (1 << 41) - 1


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A driver's settings and version, this process's capabilities, and whether it is in a container."""

    def make(parameters: str | None, capabilities: int = NONE, driver: str = "580.65.06", container=False):
        files = {name: tmp_path / name for name in ("params", "status", "mark")}
        if parameters is not None:
            files["params"].write_text(parameters, encoding="ascii")
        files["status"].write_text(f"Name:\tpython\nCapEff:\t{capabilities:016x}\n", encoding="ascii")
        if container:
            files["mark"].touch()
        monkeypatch.setattr(counters, "DRIVER_PARAMETERS", files["params"])
        monkeypatch.setattr(counters, "PROCESS_STATUS", files["status"])
        monkeypatch.setattr(counters, "CONTAINER_MARKS", (files["mark"],))
        gpu = CudaDevice(0, "GPU-a", "Card", {"driver": driver})
        monkeypatch.setattr(counters, "cuda_devices", lambda: [gpu])

    return make


@pytest.mark.parametrize(
    ("text", "capabilities", "driver", "permitted"),
    [
        ("RmProfilingAdminOnly: 1\n", ROOT, "550.54", True),
        ("RmProfilingAdminOnly: 1\n", SYS_ADMIN, "550.54", True),
        ("RmProfilingAdminOnly: 1\n", PERFMON, "550.54", False),
        ("RmProfilingAdminOnly: 1\n", PERFMON, "565.57.01", True),
        ("RmProfilingAdminOnly: 1\n", NONE, "580.65.06", False),
        ("RmProfilingAdminOnly: 1\n", PERFMON, "None", False),
        ("ResmanDebugLevel: 3\nRmProfilingAdminOnly: 0\n", NONE, "550.54", True),
        ("Other: 1\n", NONE, "550.54", True),
    ],
)
def test_permission_to_read_counters(machine, text, capabilities, driver, permitted):
    machine(text, capabilities, driver)
    finding = counters.counters_permitted()
    assert finding.available is permitted
    assert permitted or "ERR_NVGPUCTRPERM" in finding.detail
    assert (finding.fix is None) is permitted


def test_no_driver_no_counters(machine):
    machine(None)
    finding = counters.counters_permitted()
    assert finding == (False, f"{counters.DRIVER_PARAMETERS} can't be read", None)


@pytest.mark.parametrize(
    ("programs", "step"),
    [(["update-initramfs"], "update-initramfs -u"), (["dracut"], "dracut --force"), ([], None)],
)
def test_the_drivers_switch_is_one_command(machine, monkeypatch, programs, step):
    """With the image from which the driver may be loaded at boot, by whatever makes it here."""
    machine("RmProfilingAdminOnly: 1\n")
    monkeypatch.setattr("shutil.which", lambda name: name if name in programs else None)
    steps = (counters.counters_permitted().fix or "").split(" && ")
    assert steps[0] == (
        "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' "
        "| sudo tee /etc/modprobe.d/nvidia-counters.conf"
    )
    assert steps[1:-1] == ([] if step is None else [f"sudo {step}"])
    assert steps[-1] == "sudo reboot"


@pytest.mark.parametrize(("driver", "capability"), [("550.54", "SYS_ADMIN"), ("580.65.06", "PERFMON")])
def test_a_container_asks_for_a_capability(machine, driver, capability):
    machine("RmProfilingAdminOnly: 1\n", NONE, driver, container=True)
    finding = counters.counters_permitted()
    assert finding.fix == f"docker run --gpus all --cap-add={capability} IMAGE"
    assert f"CAP_{capability}" in finding.detail


def test_here_the_questions_can_be_asked():
    assert isinstance(counters.in_container(), bool)
    assert Path("/proc/self/status").exists()
    assert counters._capabilities() >= 0
