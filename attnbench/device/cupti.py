"""CUPTI's activity records: when each kernel began and ended, by the GPU's own clock. Needs no privilege.

In: the package `cupti-python`, which has NVIDIA's licence and is never bundled. Out: `refusal()`, why it
can't be used here, and `Activities`, what the GPU did for whatever the host called between two moments.

Kernels are matched to a call by where they were launched: every CUDA call has a record with its moment on the
host and a number, which the record of the kernel repeats. So launches by other threads of this process, such
as those of a backward pass, count too, and nothing has to be synchronised around a call.
"""

from __future__ import annotations

import bisect
import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self, TypeVar

_T = TypeVar("_T")
PACKAGE = "cupti-python"
OLDEST_MAJOR = 13
_BUFFER_BYTES = 8 << 20
_LAUNCHES = ("RUNTIME", "DRIVER")
_WORK = ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET")


class CuptiError(Exception):
    """CUPTI refuses; the message says what it was asked and what it said."""


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel, copy or fill on the GPU, in nanoseconds of CUPTI's clock; the name of a copy has its size."""

    name: str
    start_ns: int
    end_ns: int
    correlation_id: int


def refusal() -> str | None:
    """Why activity records can't be had here, or None. Nothing is started.

    `cupti-python` 13 speaks to drivers of CUDA 13; a PyTorch for another major version brings another CUPTI
    into the process, and the two exclude each other.
    """
    try:
        installed = version(PACKAGE)
    except PackageNotFoundError:
        return f"{PACKAGE} is not installed"
    major = installed.partition(".")[0]
    if not major.isdigit() or int(major) < OLDEST_MAJOR:
        return f"{PACKAGE} {installed} is too old, {OLDEST_MAJOR} is needed"
    torch = sys.modules.get("torch")
    cuda = None if torch is None else torch.version.cuda
    if cuda is not None and cuda.partition(".")[0] != major:
        return f"{PACKAGE} {installed} and a PyTorch for CUDA {cuda} bring different CUPTIs"
    try:
        _module()
    except CuptiError as error:
        return str(error)
    return None


class Activities:
    """Records while the block lasts; no other profiler may be at work in this process.

    Raises:
        CuptiError: from every method.
    """

    def __enter__(self) -> Self:
        """Start recording."""
        self._cupti = _module()
        self._arriving: tuple[list[tuple[int, int]], list[Work]] = ([], [])
        self._kinds = [getattr(self._cupti.ActivityKind, name) for name in (*_LAUNCHES, *_WORK)]
        try:
            for kind in self._kinds:
                _ask(f"enable {kind.name}", partial(self._cupti.activity_enable, kind))
            register = self._cupti.activity_register_callbacks
            _ask("register buffers", lambda: register(lambda: (_BUFFER_BYTES, 0), self._take))
            self.collect()
        except CuptiError:
            with contextlib.suppress(CuptiError):
                self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and leave the process as it was: with records enabled, every later call would be dearer."""
        try:
            self._stop()
        except CuptiError:
            if error is None:
                raise

    def _stop(self) -> None:
        """Take every step, whichever of them fails."""
        with contextlib.ExitStack() as steps:  # which goes backwards
            steps.callback(_ask, "finalize", self._cupti.finalize)
            for kind in reversed(self._kinds):
                steps.callback(_ask, f"disable {kind.name}", partial(self._cupti.activity_disable, kind))

    def now_ns(self) -> int:
        """The moment, on the clock that all records share."""
        return int(_ask("tell the time", self._cupti.get_timestamp))

    def collect(self) -> None:
        """Take what has been recorded since the last time, which is forgotten; call it on an idle GPU."""
        _ask("flush", lambda: self._cupti.activity_flush_all(0))
        launches, work = self._arriving
        self._arriving = ([], [])
        self._launches = sorted(launches)
        self._work: dict[int, list[Work]] = {}
        for one in work:
            self._work.setdefault(one.correlation_id, []).append(one)

    def between(self, start_ns: int, end_ns: int) -> list[Work]:
        """What the GPU did for what the host called from one moment until another, in order of its start."""
        first = bisect.bisect_left(self._launches, (start_ns, 0))
        found: list[Work] = []
        for moment, correlation_id in self._launches[first:]:
            if moment >= end_ns:
                break
            found += self._work.get(correlation_id, [])
        return sorted(found, key=lambda work: work.start_ns)

    def _take(self, records: Sequence[Any]) -> None:
        """Copy what is needed out of a buffer that CUPTI will use again."""
        launches, work = self._arriving
        launching = self._kinds[: len(_LAUNCHES)]
        for record in records:
            if record.kind in launching:
                launches.append((int(record.start), int(record.correlation_id)))
            elif record.kind in self._kinds:
                work.append(
                    Work(self._name(record), int(record.start), int(record.end), int(record.correlation_id))
                )

    def _name(self, record: Any) -> str:
        name = self._cupti.ActivityKind(record.kind).name
        return str(record.name) if name == "CONCURRENT_KERNEL" else f"{name.lower()} of {record.bytes} bytes"


def _module() -> Any:
    return _ask("import", lambda: importlib.import_module("cupti.cupti"))


def _ask(what: str, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except Exception as error:  # its own class, or RuntimeError where there is no driver
        text = " ".join(str(error).split())
        raise CuptiError(f"CUPTI can't {what}: {text or type(error).__name__}") from None
