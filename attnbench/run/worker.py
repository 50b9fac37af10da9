"""The worker: a process that measures cases, one at a time, and may die of it.

In: jobs over a channel (case, settings, context, and the task to call: all plain data). Out: the task's
record, or the status and reason of what it raised. Standard output and errors go to the log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import msgspec

from attnbench.device.limits import allowed_cores

Plain = dict[str, Any]
Task = Callable[[Plain, Plain, Plain], Plain]


class Job(msgspec.Struct, kw_only=True):
    """One call `task(case, settings, context) -> record` of the function at `package.module:function`."""

    task: str
    case: Plain
    settings: Plain
    context: Plain
    """`scratch` (a folder), `memory_limit_bytes`, `threads`, `cores` (numbers); each may be None."""


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of a job: a record, or why there is none."""

    record: Plain | None = None
    status: Literal["oom", "unsupported", "error"] | None = None
    reason: str = ""


def serve(channel: int, log: str) -> int:
    """Answer jobs until the channel closes or one fails; returns the exit code."""
    _redirect(log)
    connection = Connection(channel)
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Job)
    base_bytes, allowed = _data_bytes(), allowed_cores()
    while True:
        try:
            job = decoder.decode(connection.recv_bytes())
        except EOFError:
            return 0
        _confine(job, base_bytes)
        _keep_to(job.context.get("cores") or allowed)
        answer = run_job(job)
        connection.send_bytes(encoder.encode(answer))
        if answer.record is None:
            return 0  # what a failure left behind (a poisoned device, memory) must not meet the next case


def run_job(job: Job) -> Answer:
    """Call the job's task; whatever it raises becomes a status, and nothing that it held is kept alive."""
    _free_memory()
    try:
        module, _, function = job.task.partition(":")
        task: Task = getattr(importlib.import_module(module), function)
        _set_threads(job.context.get("threads"))
        return Answer(record=msgspec.to_builtins(task(job.case, job.settings, job.context)))
    except (Exception, SystemExit) as error:
        with contextlib.suppress(OSError):  # a full disk
            traceback.print_exception(error)
        answer = describe_failure(error, job.context.get("memory_limit_bytes"))
        _release(error)
    _free_memory()
    return answer


def describe_failure(error: BaseException, memory_limit_bytes: int | None = None) -> Answer:
    """Tell running out of memory, and kernels that the GPU has no room for, from every other exception.

    Says it in one line.
    """
    text = " ".join(str(error).split())
    if _is_too_large_a_kernel(error):
        return Answer(status="unsupported", reason=f"a kernel does not fit this GPU: {text}")
    if not _is_out_of_memory(error, text):
        return Answer(
            status="error", reason=f"{type(error).__name__}: {text}" if text else type(error).__name__
        )
    asked, free = _bytes_in(text, _ASKED), _bytes_in(text, _FREE)
    said = f"tried to allocate {asked} bytes" if asked is not None else text or type(error).__name__
    said += "" if free is None else f", {free} bytes of the GPU were free"
    limit = "" if memory_limit_bytes is None else f"; the limit is {memory_limit_bytes} bytes"
    return Answer(status="oom", reason=f"out of memory: {said}{limit}")


_ASKED = re.compile(r"(?:tried|Tried|Unable) to allocate ([\d.]+) (bytes|[KMGTPE]i?B)")
_FREE = re.compile(r"of which ([\d.]+) (bytes|[KMGTPE]i?B) is free")
_UNITS = {"bytes": 1, **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGTPE", start=1)}}


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "_ALLOC_FAILED")
"""In words of CUDA's driver (which has no room for a context or a kernel), torch on the CPU, and cuBLAS."""


def _is_out_of_memory(error: BaseException, text: str) -> bool:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or (
        isinstance(error, RuntimeError) and any(sign in text for sign in _OUT_OF_MEMORY)
    )


def _is_too_large_a_kernel(error: BaseException) -> bool:
    """Whether Triton refused to launch a kernel for its shared memory, tensor memory or threads."""
    return any(kind.__name__ == "OutOfResources" for kind in type(error).__mro__)


def _bytes_in(text: str, pattern: re.Pattern[str]) -> int | None:
    """A number of bytes in the words of torch (either device) or numpy."""
    match = pattern.search(text)
    return None if match is None or match[2] not in _UNITS else int(float(match[1]) * _UNITS[match[2]])


def _release(error: BaseException) -> None:
    """Let go of everything that the frames of an exception and of its causes hold."""
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is not None and current.__traceback__ is not None:
            traceback.clear_frames(current.__traceback__)
            current.__traceback__ = None
            pending += [current.__cause__, current.__context__]


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _set_threads(threads: int | None) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and threads:
        torch.set_num_threads(threads)


def _redirect(log: str) -> None:
    """Send output to the log, also that of C code and of the interpreter's own last words."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # if the kernel must end a process for memory, it is this one
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _confine(job: Job, base_bytes: int | None) -> None:
    """Keep a job on the CPU within its memory; on a GPU the driver maps more than it uses, so not there."""
    limit = job.context.get("memory_limit_bytes")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard
    if limit is not None and base_bytes is not None and job.case.get("device") == "cpu":
        soft = base_bytes + limit if hard == resource.RLIM_INFINITY else min(hard, base_bytes + limit)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _keep_to(cores: Sequence[int]) -> None:
    """Run on these cores alone, with every thread that this one starts from here on."""
    with contextlib.suppress(AttributeError, OSError):  # another system, or a core that has been taken away
        os.sched_setaffinity(0, cores)


def _data_bytes() -> int | None:
    """Private writable memory of this process: what RLIMIT_DATA counts."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    match = re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else None
