"""What a backend needs, each checked alone. In: a package, a program, a GPU. Out: a `Finding`.

It says whether the thing is there, why (not), and the one command that would change it, where one would. CUDA
is not initialised.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from attnbench.device import nvml
from attnbench.device.hardware import cuda_devices

AMD_DRIVER = Path("/dev/kfd")
NEW_CONTAINER = "docker run"


class Finding(NamedTuple):
    """Whether something can be had here, why (not), and the command that would make it so."""

    available: bool
    detail: str
    fix: str | None = None


def installed(module: str, package: str | None = None) -> Finding:
    """Whether a module can be imported; `package` is its name for pip, where that is another."""
    name = package or module
    if importlib.util.find_spec(module) is None:
        return Finding(False, f"{name} is not installed", f"pip install {name}")
    return Finding(True, f"{name} {version_of(name) or ''}".strip())


def on_path(name: str, fix: str | None = None) -> Finding:
    """Whether a program is on PATH; `fix` installs it."""
    if shutil.which(name):
        return Finding(True, "on PATH")
    return Finding(False, f"{name} is not on PATH", fix)


def cuda_gpu(detail: str) -> Finding:
    """Whether there is an NVIDIA GPU and a torch that can use it; `detail` is the answer where both are."""
    if importlib.util.find_spec("pynvml") is None:
        return Finding(False, "nvidia-ml-py is not installed", "pip install nvidia-ml-py")
    if (reason := nvml.unavailable_reason()) is not None:
        return Finding(False, reason)
    if not cuda_devices():
        return _no_visible_gpu()
    torch = version_of("torch")
    if torch is not None and torch.endswith("+cpu"):
        fix = f"pip install --force-reinstall torch=={torch.removesuffix('+cpu')}"
        return Finding(False, f"torch {torch} was built without CUDA", fix)
    return Finding(True, detail)


def amd_gpu() -> Finding:
    """Whether there is an AMD GPU whose driver this user may open."""
    if not AMD_DRIVER.exists():
        return Finding(False, f"no AMD GPU ({AMD_DRIVER} does not exist)")
    if not os.access(AMD_DRIVER, os.R_OK | os.W_OK):
        fix = "sudo usermod -a -G render,video $LOGNAME"
        return Finding(False, f"{AMD_DRIVER} may not be opened; log in anew after the command", fix)
    return Finding(True, "an AMD GPU")


def all_of(*findings: Finding) -> Finding:
    """The last where all hold; otherwise what is missing, and one command that does all that is needed.

    What no command can change is named alone: with it in the way, the rest doesn't matter. A container that
    must be started anew comes first, since it would lose the rest.
    """
    missing = [finding for finding in findings if not finding.available]
    if not missing:
        return findings[-1]
    fixes = []
    for finding in missing:
        if finding.fix is None:
            return finding
        fixes.append(finding.fix)
    anew = [fix for fix in fixes if fix.startswith(NEW_CONTAINER)]
    return Finding(False, "; ".join(finding.detail for finding in missing), " && ".join(anew or fixes))


def version_of(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _no_visible_gpu() -> Finding:
    if nvml.gpu_uuids():
        return Finding(False, "CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES")
    return Finding(False, "the NVIDIA driver finds no GPU")
