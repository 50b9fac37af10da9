"""Who may read a GPU's hardware counters. In: the driver's settings, this process's capabilities.

Out: whether, and otherwise the documented way (developer.nvidia.com/ERR_NVGPUCTRPERM) as one command.

A container counts as what its capabilities are: its root may lack what the host's has.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from attnbench.device.hardware import cuda_devices
from attnbench.device.requirements import NEW_CONTAINER, Finding

DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
PROCESS_STATUS = Path("/proc/self/status")
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
CAP_SYS_ADMIN, CAP_PERFMON = 21, 38
PERFMON_DRIVER = 565
"""The first driver that is content with CAP_PERFMON."""

HELD_BY_ANOTHER = "dcgmi profile --pause"
"""Has NVIDIA's monitor let go of the counters, which one program at a time can hold."""


def counters_permitted() -> Finding:
    """Whether this process may read the counters."""
    restricted = _restricted()
    if restricted is None:
        return Finding(False, f"{DRIVER_PARAMETERS} can't be read")
    if not restricted:
        return Finding(True, "every user may read the counters")
    enough = {CAP_SYS_ADMIN, CAP_PERFMON} if _knows_perfmon() else {CAP_SYS_ADMIN}
    held = _capabilities()
    if any(held >> capability & 1 for capability in enough):
        return Finding(True, "this process may read the counters")
    return forbidden()


def forbidden() -> Finding:
    """What to say and to advise where the driver refuses the counters."""
    capability = "PERFMON" if _knows_perfmon() else "SYS_ADMIN"
    detail = f"the driver reserves counters for administrators (ERR_NVGPUCTRPERM; CAP_{capability} is enough)"
    if in_container():
        return Finding(False, detail, f"{NEW_CONTAINER} --gpus all --cap-add={capability} IMAGE")
    return Finding(False, detail, _open_to_all())


def in_container() -> bool:
    """Whether this process runs in a Docker or Podman container, by the files that these leave."""
    return any(mark.exists() for mark in CONTAINER_MARKS)


def _open_to_all() -> str:
    """The driver's own switch, set for good; it must also reach an image from which the driver is loaded."""
    option = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
    steps = [f"echo '{option}' | sudo tee /etc/modprobe.d/nvidia-counters.conf"]
    if shutil.which("update-initramfs"):
        steps.append("sudo update-initramfs -u")
    elif shutil.which("dracut"):
        steps.append("sudo dracut --force")
    return " && ".join([*steps, "sudo reboot"])


def _restricted() -> bool | None:
    """Whether only administrators may read counters; None if the driver doesn't say."""
    try:
        text = DRIVER_PARAMETERS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    setting = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", text, re.MULTILINE)
    return setting is not None and setting[1] != "0"


def _capabilities() -> int:
    """The effective capabilities of this process, a bit each."""
    try:
        text = PROCESS_STATUS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", text, re.MULTILINE)
    return int(found[1], 16) if found else 0


def _knows_perfmon() -> bool:
    """Whether the first GPU's driver is content with the smaller capability."""
    driver = next((str(gpu.facts.get("driver")) for gpu in cuda_devices()), "")
    number = re.match(r"\d+", driver)
    return number is not None and int(number[0]) >= PERFMON_DRIVER
