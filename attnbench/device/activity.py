"""What the processor did between two moments: our time, everybody else's, and how often we were put aside.

`snapshot()` before and after a stretch of work; `difference(before, after)` says how undisturbed it was. A
reading costs some 50 microseconds and reads `/proc`; where that is missing, the fields that need it are None.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The "cpu" line of /proc/stat: user nice system idle iowait irq softirq steal (guest time is part of user).
_IDLE_COLUMNS = (3, 4)
_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters at one moment; only differences mean something."""

    wall_s: float
    own_cpu_s: float
    busy_cpu_s: float | None
    runqueue_wait_s: float | None
    voluntary_switches: int
    involuntary_switches: int


@dataclass(frozen=True, slots=True)
class Activity:
    """What happened between two snapshots.

    `foreign_cpu_s` is the processor time on the whole machine that was not this process's, time stolen from
    a virtual machine included; the kernel counts it in ticks (10 ms), so under about 0.1 s it says little.
    `runqueue_wait_s` is how long this process's main thread was ready to run and had no core.
    """

    wall_s: float
    own_cpu_s: float
    foreign_cpu_s: float | None
    runqueue_wait_s: float | None
    voluntary_switches: int
    involuntary_switches: int


def snapshot() -> Snapshot:
    """The counters of this process and of the machine, now."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Snapshot(
        wall_s=time.perf_counter(),
        own_cpu_s=usage.ru_utime + usage.ru_stime,
        busy_cpu_s=_busy_cpu_s(),
        runqueue_wait_s=_runqueue_wait_s(),
        voluntary_switches=usage.ru_nvcsw,
        involuntary_switches=usage.ru_nivcsw,
    )


def difference(before: Snapshot, after: Snapshot) -> Activity:
    """What happened from `before` to `after`."""
    own_cpu_s = after.own_cpu_s - before.own_cpu_s
    busy_cpu_s = _minus(after.busy_cpu_s, before.busy_cpu_s)
    return Activity(
        wall_s=after.wall_s - before.wall_s,
        own_cpu_s=own_cpu_s,
        foreign_cpu_s=None if busy_cpu_s is None else max(0.0, busy_cpu_s - own_cpu_s),
        runqueue_wait_s=_minus(after.runqueue_wait_s, before.runqueue_wait_s),
        voluntary_switches=after.voluntary_switches - before.voluntary_switches,
        involuntary_switches=after.involuntary_switches - before.involuntary_switches,
    )


def load_average() -> float | None:
    """How many processes were running or ready over the last minute, or None where the system doesn't say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _busy_cpu_s() -> float | None:
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return None
    ticks = [int(value) for value in line.split()[1 : 1 + _COLUMNS]]
    return (sum(ticks) - sum(ticks[column] for column in _IDLE_COLUMNS)) / _TICKS_PER_S


def _runqueue_wait_s() -> float | None:
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
    except (OSError, IndexError):
        return None


def _minus(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
