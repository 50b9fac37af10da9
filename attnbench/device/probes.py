"""What this machine can measure, quantity by quantity and backend by backend, and why not the rest.

In: the machine. Out: one `Probe` a backend. CUDA is not initialised; Triton is tried in processes of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from attnbench.device import cupti, nvml
from attnbench.device.hardware import cuda_devices
from attnbench.device.requirements import Finding, cuda_gpu, installed, version_of

_TRY_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether one backend can supply one quantity here; `fix` is a command that would make it so, if any."""

    quantity: str
    backend: str
    available: bool
    detail: str
    fix: str | None = None


def probes() -> list[Probe]:
    """Every backend in the order of the report, but those of DRAM bytes, which are in `measure/dram`."""
    torch_there = installed("torch")
    interpreter = triton_interpreter()
    return [
        Probe(
            "latency",
            "perf_counter (cpu)",
            *(Finding(True, _resolution()) if torch_there[0] else torch_there),
        ),
        Probe("latency", "cupti activity", *_records_activity()),
        Probe("latency", "cuda graph", *cuda_gpu("forward calls under 20 µs, many in one replay")),
        Probe("latency", "cuda events", *cuda_gpu("time between two events on the device")),
        Probe("memory", "tensor lifetimes", *torch_there),
        Probe("memory", "cuda allocator", *cuda_gpu("the allocator's own peak")),
        Probe("flops", "closed forms", True, "exact counts, no device needed"),
        Probe("agreement", "float64 reference", *torch_there),
        Probe("agreement", "kernels, interpreted", *interpreter),
        Probe("agreement", "bfloat16, interpreted", False, _BFLOAT16),
        Probe("kernels", "compiled ahead of time", *triton_compiler()),
        Probe("telemetry", "nvml", *cuda_gpu("clocks, power, temperature, throttling, other processes")),
        Probe("telemetry", "energy counter", *energy()),
        Probe("telemetry", "context switches", *_context_switches()),
        Probe("traffic", "aten operators", *torch_there),
        Probe("traffic", "triton interpreter", *interpreter),
    ]


_BFLOAT16 = (
    "the interpreter keeps bfloat16 as a bit pattern and computes with that (triton-lang/triton#11584); "
    "bfloat16 kernels are checked on a GPU"
)


def triton_interpreter() -> Finding:
    """Whether a kernel of one line runs in Triton's interpreter and computes the right thing."""
    return _try_triton("interpret", "a kernel ran and computed the right thing", {"TRITON_INTERPRET": "1"})


def triton_compiler() -> Finding:
    """Whether a kernel can be compiled for a GPU that isn't there."""
    return _try_triton("compile", "a kernel was compiled for sm_80", {})


def energy() -> Finding:
    """Whether a GPU here counts the energy that it uses."""
    gpu = cuda_gpu("")
    if not gpu.available:
        return gpu
    able = [gpu.name for gpu in cuda_devices() if nvml.energy_j(gpu.uuid) is not None]
    return Finding(bool(able), ", ".join(able) or "no GPU here counts its energy (Volta and later do)")


def _records_activity() -> Finding:
    """Available with a GPU and a CUPTI that goes with the driver and with PyTorch; needs no permission."""
    gpu, reason = cuda_gpu(""), cupti.refusal()
    missing = [why for why in ("" if gpu.available else gpu.detail, reason or "") if why]
    return Finding(not missing, "; ".join(missing) or "when each kernel began and ended", gpu.fix)


def _resolution() -> str:
    return f"resolution {time.get_clock_info('perf_counter').resolution * 1e9:g} ns"


def _context_switches() -> Finding:
    if Path("/proc/stat").exists():
        return Finding(True, "own switches, run-queue time, processor time of others")
    return Finding(False, "/proc/stat can't be read")


def _try_triton(what: str, worked: str, variables: dict[str, str]) -> Finding:
    there = installed("triton")
    if not there.available:
        return there
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
            return Finding(False, f"{there.detail}: no answer in {_TRY_TIMEOUT_S} s")
    if done.returncode == 0:
        return Finding(True, f"{there.detail}: {worked}")
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    cause, fix = _known_cause(what)
    return Finding(False, f"{there.detail}: {lines[-1] if lines else 'it crashed'}{cause}", fix)


def _known_cause(what: str) -> tuple[str, str | None]:
    """The combination that is known to fail, named in so many words, and the command that changes it."""
    triton, numpy = _numbers(version_of("triton")), _numbers(version_of("numpy"))
    if what == "interpret" and triton and numpy and triton < (3, 7) and numpy >= (2, 4):
        return " (the interpreter of triton 3.6 needs numpy below 2.4)", "pip install 'numpy<2.4'"
    return "", None


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text or "")[:2])
