"""AMD's rocprofv3: the memory traffic of one call, kernel by kernel. In: a job. Out: bytes.

The counters sit between the L2 cache and the fabric: where an Infinity Cache lies behind it (MI300), some of
these bytes never reach the HBM.
"""

from __future__ import annotations

import csv
import math
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.device.requirements import Finding, all_of, amd_gpu, on_path, version_of

from .backend import BackendError, DramBytes, summed
from .process import answer_of, check, check_end, child_command, last_words, read_file, run_profiler

if TYPE_CHECKING:
    from .job import Job

NAME = "rocprofv3"
READ, WRITE = "FETCH_SIZE", "WRITE_SIZE"
UNIT_BYTES = 1024
"""ROCm's definition of both: bytes / 1024."""
COLUMNS = {"Dispatch_Id", "Kernel_Name", "Counter_Name", "Counter_Value"}
STABLE_CLOCKS = "sudo amd-smi set --gpu all --perf-level STABLE_STD"
"""RDNA GPUs count nothing while their clocks change."""


def probe() -> Finding:
    """Say whether rocprofv3, an AMD GPU and a torch for it are there."""
    fix = "sudo apt-get install rocprofiler-sdk" if shutil.which("apt-get") else None
    return all_of(amd_gpu(), _torch_for_rocm(), on_path(NAME, fix), Finding(True, "each kernel's own bytes"))


def measure(job: Job, timeout_s: float) -> DramBytes:
    """Count the bytes of the job's call.

    Raises:
        BackendError: rocprofv3 hangs, or writes what can't be understood, or nothing, or zeros.
    """
    with tempfile.TemporaryDirectory(prefix="attnbench-rocprof-") as place:
        folder = Path(place)
        answer = folder / "answer.json"
        command = [
            *(NAME, "--pmc", READ, WRITE, "--selected-regions", "--output-format", "csv"),
            *("--output-directory", str(folder / "out"), "--output-file", "dram", "--"),
            *child_command(job.spec, NAME, answer),
        ]
        printed = run_profiler(command, timeout_s, folder)
        said = answer_of(answer)
        # In a folder of its own for each pass, in some versions; an unknown counter leaves no file at all.
        tables = [read_file(path) for path in sorted(folder.glob("out/**/*counter_collection.csv"))]
    text = "\n".join(tables)
    job.keep("rocprofv3-counter_collection.csv" if tables else "rocprofv3.txt", text or printed)
    check(NAME, printed, said)
    if not tables:
        raise last_words(NAME, printed)
    found = parse(text)
    check_end(said)
    return found


def parse(text: str) -> DramBytes:
    """Read ``counter_collection.csv``: a row for each counter of each dispatch, in kilobytes.

    Raises:
        BackendError: there is no such table, neither counter is in it, or all that was counted is 0.
    """
    dispatches: dict[tuple[str, str], dict[str, float]] = {}
    rows = csv.DictReader(line for line in text.splitlines() if line.strip())
    if not set(rows.fieldnames or ()) >= COLUMNS:
        raise last_words(NAME, text)
    for row in rows:
        value = _number(row["Counter_Value"])
        if row["Counter_Name"] in (READ, WRITE) and value is not None:
            counters = dispatches.setdefault((row["Dispatch_Id"], row["Kernel_Name"]), {})
            counters[row["Counter_Name"]] = counters.get(row["Counter_Name"], 0.0) + value
    if not dispatches:
        raise BackendError(f"rocprofv3 counted neither {READ} nor {WRITE}")
    if not any(value for counters in dispatches.values() for value in counters.values()):
        raise BackendError(
            "every counter is 0: this GPU counts at fixed clocks alone", STABLE_CLOCKS, lasting=True
        )
    kernels = [
        (kernel, DramBytes(read=_bytes(counters, READ), write=_bytes(counters, WRITE)))
        for (_, kernel), counters in dispatches.items()
    ]
    return summed(kernels)


def _bytes(counters: dict[str, float], name: str) -> int | None:
    return round(counters[name] * UNIT_BYTES) if name in counters else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _torch_for_rocm() -> Finding:
    """Whether torch was built for ROCm, by its version: its import would initialise the GPU."""
    torch = version_of("torch")
    if torch is None:
        return Finding(False, "torch is not installed")
    if "+rocm" in torch:
        return Finding(True, "")
    return Finding(False, f"torch {torch} was not built for ROCm")
