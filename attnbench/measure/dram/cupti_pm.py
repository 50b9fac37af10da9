"""CUPTI's PM sampling: counters of the whole GPU in windows round single calls. In: a job. Out: bytes.

It runs in a child process, where a crash or a hang of the library costs the record nothing. Nothing is
replayed; what other processes move meanwhile is counted too, less what an empty window of the same run shows.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.device.counters import counters_permitted
from attnbench.device.requirements import Finding, all_of, cuda_gpu, installed

from .backend import BackendError, DramBytes, completed
from .process import answer_of, check, child_command, last_words, read_file, run_profiler

if TYPE_CHECKING:
    from .job import Job

NAME = "cupti-pm"
SPELLINGS = (
    ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    ("dram__bytes_op_read.sum", "dram__bytes_op_write.sum"),
    ("dram__bytes.sum",),
)
"""Tried in this order: which a chip has, and which can be had together in one pass, the library knows."""
WINDOWS = 20
INTERVAL_NS = 10_000
INTERVAL_CYCLES = 10_000
"""For the chips that sample by their own clock alone."""
BY_CYCLES = ((7, 5), (8, 0))
TAIL_S = 0.001
"""What a window stays open after the call, so that the sample in which it ended is taken."""
MOST_SAMPLES = 100_000


class Forbidden(Exception):
    """The driver reserves the counters for administrators."""


def probe() -> Finding:
    """Say whether cupti-python, a GPU and the permission are there."""
    library = installed("cupti", "cupti-python")
    return all_of(cuda_gpu(""), library, counters_permitted(), Finding(True, "the whole GPU's bytes"))


def measure(job: Job, timeout_s: float) -> DramBytes:
    """Count the bytes of the job's call.

    Raises:
        BackendError: the library hangs, crashes, or is refused the counters.
    """
    with tempfile.TemporaryDirectory(prefix="attnbench-cupti-") as place:
        answer = Path(place) / "answer.json"
        printed = run_profiler(child_command(job.spec, NAME, answer), timeout_s, Path(place))
        said = answer_of(answer)
        raw = read_file(answer)
    job.keep("cupti-pm.json" if raw else "cupti-pm.txt", raw or printed)
    check(NAME, printed, said)
    counts = said.get("bytes")
    if not isinstance(counts, dict) or "bytes" not in counts:
        raise last_words(NAME, printed)
    return DramBytes(total=counts["bytes"], read=counts.get("read_bytes"), write=counts.get("write_bytes"))


@dataclass(frozen=True)
class Windows:
    """What each window counted of each metric, without the call and with it."""

    metrics: list[str]
    empty: list[list[float]]
    full: list[list[float]]

    def net(self) -> DramBytes:
        """Return the bytes of a call: the mean of the windows with it, less that of those without.

        Raises:
            BackendError: nothing was counted.
        """
        places = range(len(self.metrics))
        found = [max(0, round(_mean(self.full, i) - _mean(self.empty, i))) for i in places]
        if not any(found):
            raise BackendError("every sample of the counters is 0")
        if len(found) == 1:
            return DramBytes(total=found[0])
        return completed(DramBytes(read=found[0], write=found[1]))


def sample(job: Job) -> Windows:
    """Count in this process, which the library may take along when it fails.

    Raises:
        Forbidden: the driver refuses.
        BackendError: no spelling of the counters is known, or the samples did not fit.
    """
    library = importlib.import_module("cupti.pm_sampling")
    collector = library.Collector(device_index=job.device.index or 0)
    try:
        collector.enable()
    except PermissionError as error:
        raise Forbidden(str(error)) from None
    try:
        names = _configure(collector, library, _is_by_cycles(job))

        def call() -> None:
            job.call()
            job.synchronize()

        empty = [_window(job, collector, len(names), lambda: None) for _ in range(WINDOWS)]
        full = [_window(job, collector, len(names), call) for _ in range(WINDOWS)]
    finally:
        collector.disable()
    return Windows(list(names), empty, full)


def _configure(collector: Any, library: Any, by_cycles: bool) -> Sequence[str]:
    mode = library.TriggerMode.GPU_SYSCLK_INTERVAL if by_cycles else library.TriggerMode.GPU_TIME_INTERVAL
    refusals = []
    for names in SPELLINGS:
        try:
            collector.configure(
                metrics=list(names),
                sampling_interval=INTERVAL_CYCLES if by_cycles else INTERVAL_NS,
                trigger_mode=mode,
            )
        except ValueError as error:
            refusals.append(f"{names[0]}: {error}")
            continue
        return names
    raise BackendError(f"no DRAM counter can be sampled here ({'; '.join(refusals)})", lasting=True)


def _window(job: Job, collector: Any, count: int, work: Callable[[], None]) -> list[float]:
    """Count each metric once round the work, which begins with the call prepared and the cache flushed."""
    job.prepare()
    job.flush()
    collector.start()
    work()
    time.sleep(TAIL_S)
    collector.stop()
    try:
        samples = collector.decode(max_samples=MOST_SAMPLES)
    except MemoryError:
        raise BackendError("the call takes longer than the buffer for samples holds") from None
    return [sum(float(one.metric_values[i]) for one in samples) for i in range(count)]


def _is_by_cycles(job: Job) -> bool:
    if job.device.type != "cuda":
        return False
    import torch

    return torch.cuda.get_device_capability(job.device) in BY_CYCLES


def _mean(windows: Sequence[Sequence[float]], metric: int) -> float:
    return sum(window[metric] for window in windows) / len(windows)
