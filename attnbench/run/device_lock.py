"""One measurement at a time on a device, whoever runs it. In: a device's name. Out: the lock, or who has it.

An advisory lock on a file in the temporary folder (`TMPDIR`, else `/tmp`), which all users of a machine
share; the kernel gives it back when its holder dies. The file says who holds it, since when, and until when
at most: one that was stopped is not waited for for ever. Containers with temporary folders of their own don't
see each other's locks.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

_POLL_S = 0.02
_GRACE_S = 5.0
"""A holder may pass its limit by this much: ending a process that hangs takes a moment."""
_STALE_S = 0.5
_MOST_BYTES = 4096


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who has a device: process id, when its run began, and by when the turn ends (`time.monotonic`)."""

    pid: int
    since_utc: str
    until_s: float


def lock_file(device: str) -> Path:
    """The file behind a device's lock; `device` is `cpu` or the UUID of a GPU."""
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"attnbench-{device}.lock"


@contextmanager
def device_lock(
    device: str, *, since_utc: str, limit_s: float, waiting: Callable[[Holder], None]
) -> Iterator[bool]:
    """Hold the device's lock for the block.

    Yields whether the device is ours alone: False where its holder has passed the limit that it stated
    itself, and we go on beside it.

    Args:
        device: see `lock_file`.
        since_utc: when our run began, for others to read.
        limit_s: how long we need it at most.
        waiting: is told about each holder that we wait for.

    Raises:
        OSError: the file can be neither made nor opened, or its file system knows no locks.
    """
    descriptor = _open(lock_file(device))
    try:
        alone = _take(descriptor, limit_s, waiting)
        if alone:
            holder = Holder(pid=os.getpid(), since_utc=since_utc, until_s=time.monotonic() + limit_s)
            _write(descriptor, msgspec.json.encode(holder))
        yield alone
        if alone:
            _write(descriptor, b"")
    finally:
        os.close(descriptor)


def _open(file: Path) -> int:
    """Open the file for everybody; a link that somebody put there is not followed.

    Made and opened in two steps: Linux refuses to open another user's file in a shared folder with O_CREAT.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(FileExistsError):
        made = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o666)
        with suppress(OSError):
            os.fchmod(made, 0o666)  # whatever the umask says
        return made
    with suppress(PermissionError):
        return os.open(file, os.O_RDWR | flags)
    return os.open(file, os.O_RDONLY | flags)  # enough to lock it


def _take(descriptor: int, limit_s: float, waiting: Callable[[Holder], None]) -> bool:
    """Wait for the lock, for each holder until its own limit; whether we got it."""
    seen, told = None, None
    until_s = time.monotonic() + limit_s + _GRACE_S  # for one that doesn't say
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        holder = _read(descriptor)
        if holder != seen and holder is not None:
            # What a holder that was killed left stands there until the next one has written.
            seen, until_s = holder, max(holder.until_s + _GRACE_S, time.monotonic() + _STALE_S)
        elif holder is not None and holder.pid != told:
            told = holder.pid
            waiting(holder)
        if time.monotonic() > until_s:
            return False
        time.sleep(_POLL_S)


def _read(descriptor: int) -> Holder | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, _MOST_BYTES, 0), type=Holder)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _write(descriptor: int, content: bytes) -> None:
    with suppress(OSError):  # somebody else's file, or a full disk: the lock itself holds
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)
