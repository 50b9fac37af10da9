"""Nsight Compute: the DRAM bytes of one call, kernel by kernel. In: a job. Out: bytes.

The call runs in a child process, once, with the L2 cache flushed before the call and not between its kernels:
what a kernel leaves in the cache the next one finds, as it does outside of the profiler. Where a GPU needs
several passes for the counters, ncu replays each kernel and must flush before each pass.
"""

from __future__ import annotations

import csv
import math
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.device.counters import counters_permitted
from attnbench.device.requirements import Finding, all_of, cuda_gpu, on_path

from .backend import BackendError, DramBytes, summed
from .process import answer_of, check, check_end, child_command, last_words, read_file, run_profiler

if TYPE_CHECKING:
    from .job import Job

NAME = "ncu"
TOTAL = ("dram__bytes.sum",)
READ = ("dram__bytes_read.sum", "dram__bytes_op_read.sum")
WRITE = ("dram__bytes_write.sum", "dram__bytes_op_write.sum")
"""Which spelling a GPU has depends on the chip and on ncu's version; what it lacks is `n/a`."""
UNITS = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9, "Tbyte": 10**12}
FLUSHED_BETWEEN = "the cache was flushed before every kernel: the counters took several passes"


def probe() -> Finding:
    """Say whether ncu, a GPU and the permission are there."""
    tool = on_path("ncu", _installation())
    return all_of(cuda_gpu(""), tool, counters_permitted(), Finding(True, "each kernel's own bytes"))


def measure(job: Job, timeout_s: float) -> DramBytes:
    """Count the bytes of the job's call.

    Raises:
        BackendError: ncu hangs, is refused the counters, or writes what can't be understood.
    """
    began = time.monotonic()
    found, passes = _run(job, "none", timeout_s)
    if passes <= 1:
        return found
    took_s = time.monotonic() - began
    if timeout_s - took_s < took_s:
        raise BackendError(
            f"the counters take {passes} passes: a second run of {took_s:.0f} s has no time left"
        )
    found, _ = _run(job, "all", timeout_s - took_s)
    return replace(found, note=FLUSHED_BETWEEN)


def parse(text: str) -> DramBytes:
    """Read what ``ncu --csv --page raw`` writes: a header, a row of units, a row a kernel, messages between.

    Raises:
        BackendError: there is no such table, or no DRAM counter in it.
    """
    lines = text.splitlines()
    start = next((place for place, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise last_words(NAME, text)
    table = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    units = next((row for row in table if not row["ID"]), {})
    kernels = [
        (
            row.get("Kernel Name") or "?",
            DramBytes(
                total=_bytes(row, units, TOTAL),
                read=_bytes(row, units, READ),
                write=_bytes(row, units, WRITE),
            ),
        )
        for row in table
        if row["ID"]
    ]
    if not kernels:
        raise BackendError("ncu saw no kernel in the call")
    found = summed(kernels)
    if not found.to_dict():
        # Chips whose memory is the processor's, such as Tegra's, have none.
        raise BackendError("this GPU has no DRAM counter that ncu knows (dram__bytes)", lasting=True)
    return found


def most_passes(text: str) -> int:
    """Return the most passes that ncu says it made over a kernel; 1 if it says nothing."""
    return max(
        (int(count) for count in re.findall(r"^==PROF== .*- (\d+) pass", text, re.MULTILINE)), default=1
    )


def _run(job: Job, cache_control: str, timeout_s: float) -> tuple[DramBytes, int]:
    """Count with ncu's own flush (``all``) or without (``none``); return the bytes, and the most passes."""
    with tempfile.TemporaryDirectory(prefix="attnbench-ncu-") as place:
        folder = Path(place)
        table, answer = folder / "ncu.csv", folder / "answer.json"
        command = [
            *(NAME, "--target-processes", "all", "--profile-from-start", "off", "--replay-mode", "kernel"),
            *("--cache-control", cache_control, "--clock-control", "none"),
            *("--metrics", ",".join(TOTAL + READ + WRITE)),
            *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table)),
            *child_command(job.spec, NAME, answer),
        ]
        printed = run_profiler(command, timeout_s, folder)
        text, said = f"{printed}\n{read_file(table)}", answer_of(answer)
    job.keep("ncu.csv", text)
    check(NAME, text, said)
    found = parse(text)
    check_end(said)
    return found, most_passes(text)


def _bytes(row: Mapping[str, str], units: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The first of the metrics that has a number, in bytes; None where none of them has."""
    for name in names:
        number = _number(row.get(name))
        if number is None:
            continue
        unit = units.get(name) or "byte"
        if unit not in UNITS:
            raise BackendError(f"ncu counts {name} in {unit!r}, which is unknown here", lasting=True)
        return round(number * UNITS[unit])
    return None


def _number(text: str | None) -> float | None:
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:  # n/a, also behind a mark
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _installation() -> str | None:
    """The command that puts ncu on PATH: CUDA's own, or Debian's (non-free) and Ubuntu's (multiverse)."""
    found = [*Path("/opt/nvidia/nsight-compute").glob("*/ncu"), *Path("/usr/local").glob("cuda*/bin/ncu")]
    if found:
        return f"export PATH={max(found).parent}:$PATH"
    return "sudo apt-get install nsight-compute" if shutil.which("apt-get") else None
