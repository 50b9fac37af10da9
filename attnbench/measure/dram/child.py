"""The process that is profiled: `python -m attnbench.measure.dram.child REQUEST`.

It makes a job's call ready, then makes it once where the profiler looks. In: JSON `{job, collector, answer}`.
Out: JSON in the file `answer`, `{"bytes": {…}}` or `{"error": words}`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from .cupti_pm import Forbidden, sample
from .job import Job, job_from

RANGE = "attnbench"
ROCTX = ("librocprofiler-sdk-roctx.so", "librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0")


def watched_by_ncu(job: Job) -> dict[str, int]:
    """Make the call between cudaProfilerStart and cudaProfilerStop; ncu counts by itself.

    The NVTX range is a name for people. It selects nothing: backward passes launch from another thread.
    """
    if job.device.type != "cuda":
        _call_once(job)
        return {}
    job.prepare()
    job.flush()
    torch.cuda.profiler.start()
    with torch.cuda.nvtx.range(RANGE):
        kept = job.call()
    job.synchronize()
    torch.cuda.profiler.stop()
    del kept
    return {}


def watched_by_rocprofv3(job: Job) -> dict[str, int]:
    """Make the call in the region that `rocprofv3 --selected-regions` counts."""
    if job.device.type != "cuda":
        _call_once(job)
        return {}
    roctx = _roctx()
    job.prepare()
    job.flush()
    roctx.roctxProfilerResume(ctypes.c_uint64(0))
    kept = job.call()
    job.synchronize()
    roctx.roctxProfilerPause(ctypes.c_uint64(0))
    del kept
    return {}


def sampled_by_cupti(job: Job) -> dict[str, int]:
    """Count the call in this process."""
    return sample(job).to_dict()


COLLECTORS: Mapping[str, Callable[[Job], dict[str, int]]] = {
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
            answer = {"bytes": COLLECTORS[request["collector"]](job)}
    except Forbidden as error:
        answer = {"kind": "forbidden", "error": str(error)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(request["answer"]).write_bytes(msgspec.json.encode(answer))
    return int("error" in answer)


def _call_once(job: Job) -> None:
    job.prepare()
    job.call()


def _roctx() -> ctypes.CDLL:
    for name in ROCTX:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(f"{ROCTX[0]} can't be loaded: rocprofv3 can't be told which call to count")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
