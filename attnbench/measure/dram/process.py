"""Profilers as processes: run one, let it neither hang nor drown us, and put what went wrong into words.

In: a command, a time limit. Out: what it printed, or a `BackendError`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import IO, Any

import msgspec

from attnbench.device.counters import HELD_BY_ANOTHER, forbidden
from attnbench.measure.record import one_line

from .backend import BackendError, HungError

KEPT_BYTES = 1 << 20
"""Of what a process prints, the last of it: a profiler may print without end."""
FILE_BYTES = 1 << 26
CHILD = "attnbench.measure.dram.child"
FORBIDDEN = re.compile(r"ERR_NVGPUCTRPERM|INSUFFICIENT_PRIVILEGES")
BUSY = re.compile(r"driver resource was unavailable|HARDWARE_BUSY|already under profiling", re.IGNORECASE)


def child_command(spec: Mapping[str, Any], collector: str, answer: Path) -> list[str]:
    """Return what runs a job's call in a process of its own; `answer` is the file that the process writes."""
    request = {"job": spec, "collector": collector, "answer": str(answer)}
    return [sys.executable, "-m", CHILD, msgspec.json.encode(request).decode()]


def run_profiler(command: Sequence[str], timeout_s: float, folder: Path) -> str:
    """Run a command to its end and return what it printed.

    It stays in this process's group, so that whoever ends this process with its group ends it too. Its
    temporary files go to `folder`.

    Raises:
        HungError: it took longer; it and all it started have been killed.
        BackendError: it can't be started.
    """
    name = Path(command[0]).name
    search = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    # Numbers without a country's commas; a lock of its own for each user in place of one in /tmp.
    environment = os.environ | {"PYTHONPATH": search, "LC_ALL": "C.UTF-8", "TMPDIR": str(folder)}
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise BackendError(f"{name} can't be started: {error.strerror}", lasting=True) from None
    printed = bytearray()
    assert process.stdout is not None
    reader = Thread(target=_keep_last, args=(process.stdout, printed), daemon=True)
    reader.start()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise HungError(f"{name} did not end within {timeout_s:.0f} s and was killed") from None
    finally:
        if process.poll() is None:
            _kill_tree(process.pid)
            process.wait()
        reader.join(timeout=5)
    return printed.decode("utf-8", errors="replace")


def read_file(path: Path) -> str:
    """Return what a profiler wrote, the beginning of it where it wrote too much; nothing where it didn't."""
    try:
        with path.open("rb") as stream:
            return stream.read(FILE_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""


def answer_of(path: Path) -> dict[str, Any]:
    """Return what the child wrote; nothing where it wrote nothing whole."""
    try:
        found = msgspec.json.decode(read_file(path))
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def check(name: str, printed: str, answer: Mapping[str, Any]) -> None:
    """Find what went wrong in the words of a profiler and of the child.

    Raises:
        BackendError: one of them complains.
    """
    said = f"{printed}\n{answer.get('error', '')}"
    if FORBIDDEN.search(said) or answer.get("kind") == "forbidden":
        finding = forbidden()
        raise BackendError(finding.detail, finding.fix, lasting=True)
    if BUSY.search(said):
        raise BackendError("another program holds the GPU's counters", HELD_BY_ANOTHER, lasting=True)
    if "error" in answer:
        words = one_line(f"the profiled process failed: {answer['error']}")
        raise BackendError(words, lasting=answer.get("kind") == "lasting")
    errors = re.findall(r"^==ERROR==\s*(.+)$", printed, re.MULTILINE)
    if errors:
        raise BackendError(one_line(f"{name}: {errors[0]}"))


def check_end(answer: Mapping[str, Any]) -> None:
    """Find out whether all of the call was counted.

    Raises:
        BackendError: the child was gone before it answered.
    """
    if "bytes" not in answer:
        raise BackendError("the profiled process died before its call was over")


def last_words(name: str, printed: str) -> BackendError:
    """Return what to say of output that makes no sense: its last line."""
    lines = [line for line in printed.splitlines() if line.strip()]
    said = f"its last words: {lines[-1]}" if lines else "it printed nothing"
    return BackendError(one_line(f"{name} wrote no table; {said}"))


def _keep_last(stream: IO[bytes], printed: bytearray) -> None:
    with stream:
        while chunk := os.read(stream.fileno(), 1 << 16):
            printed += chunk
            del printed[:-KEPT_BYTES]


def _kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, by parentage: they share their group with us."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    family = [pid]
    for member in family:
        family += children.get(member, [])
    for member in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGKILL)


def _parent(process: Path) -> int | None:
    try:
        # The name in parentheses may hold anything; what follows it begins with state and parent.
        return int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
