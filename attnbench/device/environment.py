"""The circumstances of a run as plain data: versions, settings that matter, source revision.

Nothing private: no host name, no user name, no home folder.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attnbench.device import hardware, limits
from attnbench.device.activity import load_average

_PACKAGES = ("attnbench", "torch", "triton", "numpy", "scipy", "nvidia-ml-py", "msgspec")
# Environment variables that change what is measured; values are recorded as they are.
_VARIABLES = re.compile(
    r"(ATTNBENCH|OMP|MKL|OPENBLAS|KMP|GOMP|MALLOC|TORCH|PYTORCH|TRITON|CUDA|CUBLAS|CUDNN|NVIDIA|HIP|ROCR)_\w+|CUBLASLT_\w+|LD_PRELOAD"
)
_GIT_TIMEOUT_S = 10
TRITON_SETTINGS = {"TRITON_DEFAULT_FP_FUSION": "1"}
"""What Triton is told wherever it compiles, unless the environment says otherwise: multiply and add become
one instruction, as nvcc has it. Triton 3.10 turns its default around.
"""


def environment() -> dict[str, Any]:
    """Hardware, operating system, limits, load and environment variables that matter."""
    threads, why = hardware.default_threads()
    return {
        **hardware.describe(),
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu_governor": cpu_governor(),
        "load_average": load_average(),
        "available_memory_bytes": limits.available_memory_bytes(),
        "default_threads": threads,
        "default_threads_reason": why,
        "variables": {
            name: without_home(value)
            for name, value in sorted((TRITON_SETTINGS | os.environ).items())
            if _VARIABLES.fullmatch(name)
        },
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide what is measured; None where one is missing."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def cpu_governor() -> str | None:
    """The frequency policy of the first core, or None where there is none (most virtual machines)."""
    try:
        path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def git_revision(folder: Path) -> dict[str, Any] | None:
    """Commit of the work tree around `folder` and whether tracked files differ; None outside of one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "modified": bool(changes)}


def without_home(text: str) -> str:
    """The text with the home folder written as `~`."""
    home = os.environ.get("HOME", "").rstrip("/")
    return re.sub(re.escape(home) + r"(?![\w.-])", "~", text) if len(home) > 1 else text


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        if package == "attnbench":
            from attnbench import __version__

            return __version__
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    # Without optional locks: reading the state must not write into somebody's repository.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
