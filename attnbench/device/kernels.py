"""What the kernels of implementations compile to. In: names, targets, forms. Out: rows of plain data.

The work is done by `kernel_worker` in processes of their own; results are kept on disk, by Triton's hash of
source, types, options and version, so that a second look is quick. Loads neither torch nor triton.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import LifoQueue
from typing import Any

from attnbench.contract.errors import UsageError

from .environment import TRITON_SETTINGS
from .kernel_forms import Form
from .limits import allowed_cores

MOST_PROCESSES = 8
"""A compiling process takes about a gigabyte."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """All kernels that one implementation launches for a form on a target."""

    name: str
    variant: str
    target: str
    form: Form


class WorkerDied(Exception):
    """The compiling process ended; the message says how."""


class _Worker:
    """A compiling process, started when it is first asked and again after its death."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Return the answer.

        Raises:
            UsageError: what the worker has to say to the user.
            WorkerDied: it ended instead of answering.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(json.dumps(request), file=process.stdin, flush=True)
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            raise WorkerDied(_how_it_ended(process.returncode))
        said = json.loads(line)
        if "error" in said:
            raise UsageError(said["error"])
        return said["answer"]

    def _start(self) -> subprocess.Popen[str]:
        folder = cache_folder()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attnbench.device.kernel_worker", str(folder / "facts")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_environment(folder),
        )
        return self._process

    def close(self) -> None:
        """Let the process end."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"the compiling process ended with code {code}"
    return f"the compiling process was ended by {signal.Signals(-code).name}"


def cache_folder() -> Path:
    """Return where compiled kernels and what is known of them are kept."""
    if given := os.environ.get("TRITON_CACHE_DIR"):
        return Path(given) / "attnbench-kernels"
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "attnbench" / "kernels"


def _environment(folder: Path) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return {
        **TRITON_SETTINGS,
        **variables,
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_DUMP_PTXAS_LOG": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


class Compilers:
    """The compiling processes, as many as there are cores, each started when it is needed."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._workers = [_Worker() for _ in range(min(len(allowed_cores()), MOST_PROCESSES))]
        self._idle: LifoQueue[_Worker] = LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()

    def find_tasks(self, name: str | None, targets: Iterable[str], forms: Sequence[Form]) -> list[Task]:
        """Return the tasks for an implementation (``None``: all that have kernels).

        Raises:
            UsageError: no such implementation, or it has no kernels that can be compiled ahead of time.
        """
        try:
            found = self._ask({"name": name})
        except WorkerDied as error:
            raise UsageError(f"{name or 'an implementation'} can't be loaded: {error}") from error
        variants = [item["name"] for item in found if item["kernels"]]
        if not variants:
            raise UsageError(f"{name} has no kernels to compile ahead of time (KernelSpec.variants)")
        return [
            Task(name or variant, variant, target, form)
            for variant in variants
            for target in targets
            for form in forms
        ]

    def inspect(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, list[Row]]]:
        """Yield each task with its rows, as they are done; a kernel that doesn't compile has an ``error``."""
        pool = ThreadPoolExecutor(len(self._workers))
        try:
            submitted = {pool.submit(self._rows, task): task for task in tasks}
            for done in as_completed(submitted):
                yield submitted[done], done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _rows(self, task: Task) -> list[Row]:
        try:
            return list(self._ask(asdict(task)))
        except WorkerDied as error:
            row = {"implementation": task.variant, "kernel": None, "target": task.target}
            return [{**row, **asdict(task.form), "mode": None, "variant": 1, "error": str(error)}]

    def _ask(self, request: Mapping[str, Any]) -> Any:
        worker = self._idle.get()
        try:
            return worker.ask(request)
        finally:
            self._idle.put(worker)


def in_order(tasks: Sequence[Task], found: Mapping[Task, list[Row]]) -> list[Row]:
    """Return all rows: by implementation, kernel and form, the targets of each together."""
    rows = [row for task in tasks for row in found.get(task, [])]
    first: dict[tuple[Any, ...], int] = {}
    for row in rows:
        first.setdefault(identity(row)[:-1], len(first))
    return sorted(rows, key=lambda row: first[identity(row)[:-1]])


def identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells a row from others, the target last."""
    keys = ("implementation", "kernel", "mode", "dtype", "head_dim", "mask", "ragged", "variant", "target")
    return tuple(row[key] for key in keys)
