"""The most memory this process held during a stretch of work, as the kernel counts it (`VmHWM`): Linux.

The mark is reset before the stretch and read after it. C's allocator would spoil the count, since it keeps
what is freed. Inside `own_mappings` it gives every block of 64 KiB and more a mapping of its own, which comes
and goes with the block: whatever the stretch may free has to be allocated in there as well.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RESOLUTION_BYTES = 1 << 20
"""What else may come between: one arena of Python's own allocator, and 256 KiB of the kernel's batching."""

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_HIGH_WATER = "5"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_OWN_MAPPING_BYTES = 64 << 10
# Where glibc's own adjusting ends up once large blocks have been freed: the largest threshold, twice that.
_USUAL_MAPPING_BYTES = 32 << 20


class NoHighWaterError(OSError):
    """This system does not tell; the message says why."""


@dataclass
class HighWater:
    """Complete once its block has ended."""

    increment_bytes: int = 0
    """The peak during the block above what was held when it began."""


@contextmanager
def own_mappings() -> Iterator[None]:
    """Give every large block that is allocated within a mapping of its own; slower, as each is zeroed anew.

    Raises:
        NoHighWaterError: the C library is not glibc.
    """
    libc = _glibc()
    libc.mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)
    try:
        yield
    finally:
        libc.mallopt(_M_MMAP_THRESHOLD, _USUAL_MAPPING_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _USUAL_MAPPING_BYTES)


@contextmanager
def high_water() -> Iterator[HighWater]:
    """Measure the block's peak; exact to `RESOLUTION_BYTES` inside `own_mappings`.

    Raises:
        NoHighWaterError: no Linux, no glibc, or a sandbox that hides `/proc/self`.
    """
    seen = HighWater()
    gc.collect()
    _glibc().malloc_trim(0)
    before_bytes = _status("VmRSS")
    try:
        _CLEAR.write_text(_RESET_HIGH_WATER)
    except OSError as error:
        raise NoHighWaterError(f"{_CLEAR} can't be written: {error.strerror}") from None
    yield seen
    seen.increment_bytes = _status("VmHWM") - before_bytes


def _glibc() -> ctypes.CDLL:
    try:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):
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
