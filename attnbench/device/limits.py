"""How much memory and how many cores this process may use: what the machine has and its container allows.

Control groups of both versions are read (`/proc/self/cgroup`, then the files of each group up to the root;
the tightest counts). `root` exists so that another tree of the same files can be read. None: can't be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
# From here on a version 1 limit means "none": the kernel writes the largest page-aligned 63-bit number.
_UNLIMITED = 1 << 60
# Part of the available memory that a case may plan with; libraries and the page cache need the rest.
_PLANNED_PART = 0.8


@dataclass(frozen=True, slots=True)
class _Files:
    """Names of the memory controller's files in one version of control groups."""

    limit: str
    usage: str
    inactive_key: str
    events: str


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control")
_V2 = _Files("memory.max", "memory.current", "inactive_file", "memory.events")


def total_memory_bytes(root: Path = _ROOT) -> int | None:
    """Memory of the machine in bytes."""
    return _meminfo(root, "MemTotal")


def container_memory_limit_bytes(root: Path = _ROOT) -> int | None:
    """The tightest memory limit of the control groups this process is in, or None without one."""
    limits = [_limit(folder / files.limit) for folder, files in _memory_groups(root)]
    return min((limit for limit in limits if limit is not None), default=None)


def available_memory_bytes(root: Path = _ROOT) -> int | None:
    """Bytes that can be allocated now without swapping and without passing a container's limit.

    The smallest of `MemAvailable` and, for each control group, limit - (usage - droppable page cache).
    """
    rooms = [available] if (available := _meminfo(root, "MemAvailable")) is not None else []
    for folder, files in _memory_groups(root):
        limit, usage = _limit(folder / files.limit), _number(folder / files.usage)
        if limit is not None and usage is not None:
            droppable = _keyed(folder / "memory.stat", files.inactive_key) or 0
            rooms.append(max(0, limit - max(0, usage - droppable)))
    return min(rooms, default=None)


def default_memory_limit_bytes(root: Path = _ROOT) -> int | None:
    """Four fifths of the memory available now: what a case may plan with unless somebody says otherwise."""
    available = available_memory_bytes(root)
    return None if available is None else int(available * _PLANNED_PART)


def oom_kills(root: Path = _ROOT) -> int | None:
    """A counter that grows when the kernel kills a process here, or anywhere on the machine, for memory."""
    counts = [_keyed(folder / files.events, "oom_kill") for folder, files in _memory_groups(root)]
    counts.append(_keyed(root / "proc/vmstat", "oom_kill"))
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def allowed_cores() -> list[int]:
    """Numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def in_ranges(cores: Sequence[int]) -> str:
    """Numbers in ascending order as the kernel writes them: `0-3,8`."""
    ranges: list[list[int]] = []
    for core in cores:
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def usable_cores(root: Path = _ROOT) -> int:
    """Cores this process may keep busy: its affinity, and a container's quota rounded down (at least 1)."""
    cores = len(allowed_cores())
    quota = cpu_quota_cores(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota_cores(root: Path = _ROOT) -> float | None:
    """Processor time a container may use per second of wall time, in cores; None without a limit."""
    quotas = []
    for folder in _groups(root, "cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    for folder in _groups(root, ""):
        words = _words(folder / "cpu.max")
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _memory_groups(root: Path) -> Iterator[tuple[Path, _Files]]:
    for controller, files in (("memory", _V1), ("", _V2)):
        for folder in _groups(root, controller):
            yield folder, files


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups, the innermost first; `controller` "" means version 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controller
        folder = mount / path.lstrip("/")
        # In a container without a namespace of its own the path is the host's; only the mount's root is seen.
        while folder != mount:
            if folder.is_dir():
                yield folder
            folder = folder.parent
        yield mount


def _meminfo(root: Path, key: str) -> int | None:
    kibibytes = _keyed(root / "proc/meminfo", key + ":")
    return None if kibibytes is None else kibibytes * 1024


def _keyed(path: Path, key: str) -> int | None:
    """The number behind `key` in a file of `key number` lines."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(words[1]) for line in lines if (words := line.split())[:1] == [key]), None)


def _limit(path: Path) -> int | None:
    number = _number(path)
    return None if number is None or number >= _UNLIMITED else number


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].lstrip("-").isdigit() else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
