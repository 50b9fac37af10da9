"""The process that is profiled: `python -m attnbench.measure.dram.child REQUEST`.

It makes a job's call ready, then makes it once where the profiler looks. In: JSON `{job, collector, answer}`.
Out: JSON in the file `answer`, `{"bytes": {…}}`, from CUPTI beside its `windows`, or
`{"error": words, "kind": forbidden, lasting or failed}`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from .backend import BackendError
from .cupti_pm import Forbidden, sample
from .job import Job, job_from

RANGE = "attnbench"
ROCTX = ("librocprofiler-sdk-roctx.so", "librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0")


def watched_by_ncu(job: Job) -> dict[str, Any]:
    """Make the call between cudaProfilerStart and cudaProfilerStop; ncu counts by itself.

    The NVTX range is a name for people. It selects nothing: backward passes launch from another thread.
    """
    on_gpu = job.device.type == "cuda"
    start, stop = (torch.cuda.profiler.start, torch.cuda.profiler.stop) if on_gpu else (_nothing, _nothing)
    with torch.cuda.nvtx.range(RANGE) if on_gpu else nullcontext():
        _call_between(job, start, stop)
    return {"bytes": {}}


def watched_by_rocprofv3(job: Job) -> dict[str, Any]:
    """Make the call in the region, of all threads, that `rocprofv3 --selected-regions` counts."""
    start, stop = _roctx() if job.device.type == "cuda" else (_nothing, _nothing)
    _call_between(job, start, stop)
    return {"bytes": {}}


def sampled_by_cupti(job: Job) -> dict[str, Any]:
    """Count the call in this process."""
    windows = sample(job)
    return {"bytes": windows.net().to_dict(), "windows": asdict(windows)}


COLLECTORS: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    "ncu": watched_by_ncu,
    "rocprofv3": watched_by_rocprofv3,
    "cupti-pm": sampled_by_cupti,
}


def main(argument: str) -> int:
    """Serve one request; returns the exit code."""
    request = msgspec.json.decode(argument)
    answer: dict[str, Any]
    try:
        job = job_from(request["job"])
        job.warm_up()
        with job.environment():
            answer = COLLECTORS[request["collector"]](job)
    except Forbidden as error:
        answer = {"kind": "forbidden", "error": str(error)}
    except BackendError as error:
        answer = {"kind": "lasting" if error.lasting else "failed", "error": str(error)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(request["answer"]).write_bytes(msgspec.json.encode(answer))
    return int("error" in answer)


def _call_between(job: Job, start: Callable[[], Any], stop: Callable[[], Any]) -> None:
    job.prepare()
    job.flush()
    start()
    kept = job.call()  # freed outside: that may wait for the device
    job.synchronize()
    stop()
    del kept


def _nothing() -> None:
    """Start or stop no profiler."""


def _roctx() -> tuple[Callable[[], Any], Callable[[], Any]]:
    for name in ROCTX:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        every_thread = ctypes.c_uint64(0)
        resume, pause = library.roctxProfilerResume, library.roctxProfilerPause
        return partial(resume, every_thread), partial(pause, every_thread)
    raise OSError(f"{ROCTX[0]} can't be loaded: rocprofv3 can't be told which call to count")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
