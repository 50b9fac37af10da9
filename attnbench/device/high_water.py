"""The most memory this process holds during a piece of work, by the kernel's count (`VmHWM`): Linux, glibc.

The mark is reset before the work and read after it. C's allocator would spoil the count, since it keeps what
is freed. So the work is done in a thread of its own, whose heap has no large holes, while every block of 64
KiB and more gets a mapping of its own, which comes and goes with the block. What the work may free has to be
allocated in there as well: that is what `prepare` is for.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RESOLUTION_BYTES = 1 << 20
"""What else may come between: one arena of Python's own allocator, and 256 KiB of the kernel's batching."""

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_HIGH_WATER = "5"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_OWN_MAPPING_BYTES = 64 << 10
_PLUG_BYTES, _HEAP_BYTES = 60 << 10, 64 << 20
"""A block just too small for a mapping of its own; what the heap of a thread holds at most."""
# Where glibc's own adjusting ends up once large blocks have been freed: the largest threshold, twice that.
_USUAL_MAPPING_BYTES = 32 << 20


class NoHighWaterError(OSError):
    """This system does not tell; the message says why."""


def peak_increment_bytes(prepare: Callable[[], object], work: Callable[[], object]) -> int:
    """Return the peak of ``work()`` above what the process held after ``prepare()``, to `RESOLUTION_BYTES`.

    Raises:
        NoHighWaterError: no Linux, no glibc, or a sandbox that hides `/proc/self`.
        Exception: what ``prepare`` and ``work`` raise.
    """
    libc = _glibc()

    def measure() -> int:
        # A thread may inherit the heap of one that has ended: blocks that stay fill its holes.
        plugs = [libc.malloc(_PLUG_BYTES) for _ in range(_HEAP_BYTES // _PLUG_BYTES)]
        try:
            return measure_plugged()
        finally:
            for plug in plugs:
                libc.free(plug)

    def measure_plugged() -> int:
        kept = prepare()
        gc.collect()
        libc.malloc_trim(0)
        before_bytes = _status("VmRSS")
        try:
            _CLEAR.write_text(_RESET_HIGH_WATER)
        except OSError as error:
            raise NoHighWaterError(f"{_CLEAR} can't be written: {error.strerror}") from None
        made = work()
        peak_bytes = _status("VmHWM")
        del kept, made
        return peak_bytes - before_bytes

    libc.mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)
    try:
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(measure).result()
    finally:
        libc.mallopt(_M_MMAP_THRESHOLD, _USUAL_MAPPING_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _USUAL_MAPPING_BYTES)


def _glibc() -> ctypes.CDLL:
    try:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):
            libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
            libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
            return libc
    except (OSError, TypeError):
        pass
    raise NoHighWaterError("the C library is not glibc")


def _status(name: str) -> int:
    """Return a line of `/proc/self/status` in bytes."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024
    except (OSError, StopIteration):
        raise NoHighWaterError(f"{_STATUS} does not tell {name}") from None
