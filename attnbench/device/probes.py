"""What this machine can measure, quantity by quantity and backend by backend, and why not the rest.

In: the machine. Out: one `Probe` a backend. CUDA is not initialised; Triton is tried in processes of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from attnbench.device import cupti, nvml
from attnbench.device.hardware import cuda_devices

_TRY_TIMEOUT_S = 120
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether one backend can supply one quantity here."""

    quantity: str
    backend: str
    available: bool
    detail: str


def probes() -> list[Probe]:
    """Every backend of every quantity, in the order of the report."""
    torch_there = _installed("torch")
    interpreter = triton_interpreter()
    return [
        Probe(
            "latency",
            "perf_counter (cpu)",
            *torch_there[:1],
            _timer_detail() if torch_there[0] else torch_there[1],
        ),
        Probe("latency", "cupti activity", *_records_activity()),
        Probe("latency", "cuda graph", *_needs_gpu("forward calls under 20 µs, many in one replay")),
        Probe("latency", "cuda events", *_needs_gpu("time between two events on the device")),
        Probe("memory", "tensor lifetimes", *torch_there),
        Probe("memory", "cuda allocator", *_needs_gpu("the allocator's own peak")),
        Probe("flops", "closed forms", True, "exact counts, no device needed"),
        Probe("traffic", "aten operators", *torch_there),
        Probe("traffic", "triton interpreter", *interpreter),
        Probe("traffic", "ncu", *_reads_counters(_program("ncu"))),
        Probe("traffic", "cupti", *_reads_counters(_installed("cupti", "cupti-python"))),
        Probe("traffic", "nvml gpm", *gpm()),
        Probe("traffic", "rocprofv3", *_program("rocprofv3")),
        Probe("agreement", "float64 reference", *torch_there),
        Probe("agreement", "kernels, interpreted", *interpreter),
        Probe("agreement", "bfloat16, interpreted", False, _BFLOAT16),
        Probe("kernels", "compiled ahead of time", *triton_compiler()),
        Probe("telemetry", "nvml", *_needs_gpu("clocks, power, temperature, throttling, other processes")),
        Probe("telemetry", "energy counter", *energy()),
        Probe("telemetry", "context switches", *_context_switches()),
    ]


_BFLOAT16 = (
    "the interpreter keeps bfloat16 as a bit pattern and computes with that (triton-lang/triton#11584); "
    "bfloat16 kernels are checked on a GPU"
)


def triton_interpreter() -> tuple[bool, str]:
    """Whether a kernel of one line runs in Triton's interpreter and computes the right thing."""
    return _try_triton("interpret", "a kernel ran and computed the right thing", {"TRITON_INTERPRET": "1"})


def triton_compiler() -> tuple[bool, str]:
    """Whether a kernel can be compiled for a GPU that isn't there."""
    return _try_triton("compile", "a kernel was compiled for sm_80", {})


def counters_permitted(parameters: Path = _DRIVER_PARAMETERS) -> tuple[bool, str]:
    """Whether this user may read the GPU's counters: root always, others if the driver allows it."""
    try:
        text = parameters.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False, f"{parameters} can't be read"
    restricted = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", text, re.MULTILINE)
    if restricted is None or restricted[1] == "0" or os.geteuid() == 0:
        return True, "counters may be read"
    return False, "the driver reserves counters for root (RmProfilingAdminOnly: 1)"


def gpm() -> tuple[bool, str]:
    """Whether NVML estimates DRAM traffic here."""
    devices = cuda_devices()
    if not devices:
        return _needs_gpu("")
    able = [gpu.name for gpu in devices if nvml.supports_gpm(gpu.uuid)]
    return bool(able), ", ".join(able) if able else "no GPU here offers GPM metrics (Hopper and later do)"


def energy() -> tuple[bool, str]:
    """Whether a GPU here counts the energy that it uses."""
    devices = cuda_devices()
    if not devices:
        return _needs_gpu("")
    able = [gpu.name for gpu in devices if nvml.energy_j(gpu.uuid) is not None]
    return bool(able), ", ".join(able) if able else "no GPU here counts its energy (Volta and later do)"


def _records_activity() -> tuple[bool, str]:
    """Available with a GPU and a CUPTI that goes with the driver and with PyTorch; needs no permission."""
    missing = [why for available, why in (_needs_gpu(""), _cupti()) if not available]
    return (False, "; ".join(missing)) if missing else (True, "when each kernel began and ended")


def _cupti() -> tuple[bool, str]:
    reason = cupti.refusal()
    return reason is None, reason or ""


def _needs_gpu(detail: str) -> tuple[bool, str]:
    """Available with a GPU and a torch that can use it."""
    reason = nvml.unavailable_reason()
    devices = cuda_devices()
    if not devices:
        return False, reason or "no GPU is visible (CUDA_VISIBLE_DEVICES)"
    if (torch := _version("torch")) is not None and torch.endswith("+cpu"):
        return False, f"torch {torch} was built without CUDA"
    return True, detail


def _reads_counters(tool: tuple[bool, str]) -> tuple[bool, str]:
    """Available with a GPU, the tool and the permission; otherwise all that is missing."""
    gpu = _needs_gpu("")
    needs = [gpu, tool, counters_permitted()] if gpu[0] else [gpu, tool]
    missing = [why for available, why in needs if not available]
    return (False, "; ".join(missing)) if missing else (True, "counters may be read")


def _installed(module: str, package: str | None = None) -> tuple[bool, str]:
    if importlib.util.find_spec(module) is None:
        return False, f"{package or module} is not installed"
    return True, f"{package or module} {_version(package or module) or ''}".strip()


def _program(name: str) -> tuple[bool, str]:
    found = shutil.which(name)
    return (True, "on PATH") if found else (False, f"{name} is not on PATH")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _timer_detail() -> str:
    return f"resolution {time.get_clock_info('perf_counter').resolution * 1e9:g} ns"


def _context_switches() -> tuple[bool, str]:
    if Path("/proc/stat").exists():
        return True, "own switches, run-queue time, processor time of others"
    return False, "/proc/stat can't be read"


def _try_triton(what: str, worked: str, variables: dict[str, str]) -> tuple[bool, str]:
    there, detail = _installed("triton")
    if not there:
        return False, detail
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    search = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    with tempfile.TemporaryDirectory(prefix="attnbench-") as cache:
        environment |= {
            "TRITON_CACHE_DIR": cache,
            "PYTHONPATH": search,
            "OPENBLAS_NUM_THREADS": "1",
        } | variables
        command = [sys.executable, "-m", "attnbench.device.triton_check", what]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_TRY_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return False, f"triton {_version('triton')}: no answer in {_TRY_TIMEOUT_S} s"
    if done.returncode == 0:
        return True, f"triton {_version('triton')}: {worked}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return False, f"triton {_version('triton')}: {lines[-1] if lines else 'it crashed'}{_known_cause(what)}"


def _known_cause(what: str) -> str:
    """The combination that is known to fail, named in so many words."""
    triton, numpy = _numbers(_version("triton")), _numbers(_version("numpy"))
    if what == "interpret" and triton and numpy and triton < (3, 7) and numpy >= (2, 4):
        return " (the interpreter of triton 3.6 needs numpy below 2.4)"
    return ""


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text or "")[:2])
