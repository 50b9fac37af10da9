"""Limits of memory and cores, read from trees of the kernel's own files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.device import limits

GIB = 1 << 30
MEMINFO = "MemTotal:       67108864 kB\nMemFree:  1 kB\nMemAvailable:   33554432 kB\n"
UNLIMITED_V1 = "9223372036854771712\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 64 GiB, half of it free, and no container."""
    put(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"})
    return tmp_path


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="ascii")


def test_without_a_container_the_machine_counts(root):
    assert limits.total_memory_bytes(root) == 64 * GIB
    assert limits.available_memory_bytes(root) == 32 * GIB
    assert limits.default_memory_limit_bytes(root) == int(0.8 * 32 * GIB)
    assert limits.container_memory_limit_bytes(root) is None
    assert limits.cpu_quota_cores(root) is None
    assert limits.oom_kills(root) is None


def test_version_2_the_tightest_group_counts(root):
    put(root, {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/pod/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        "sys/fs/cgroup/pod/box/memory.max": "max\n",
        "sys/fs/cgroup/pod/box/memory.events": "low 0\noom 3\noom_kill 2\n",
        "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
    })  # fmt: skip
    assert limits.container_memory_limit_bytes(root) == 8 * GIB
    assert limits.available_memory_bytes(root) == (8 - (3 - 1)) * GIB
    assert limits.cpu_quota_cores(root) == 1.5
    assert limits.usable_cores(root) == 1
    assert limits.oom_kills(root) == 2


def test_version_1(root):
    put(root, {
        "proc/self/cgroup": "4:memory:/docker/x\n1:cpu,cpuacct:/docker/x\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
        "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/docker/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
        "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000\n",
        "proc/vmstat": "nr_free_pages 1\noom_kill 7\n",
    })  # fmt: skip
    assert limits.container_memory_limit_bytes(root) == 2 * GIB
    assert limits.available_memory_bytes(root) == GIB
    assert limits.cpu_quota_cores(root) == 0.5
    assert limits.usable_cores(root) == 1
    assert limits.oom_kills(root) == 12


def test_a_container_that_shows_the_hosts_path(root):
    """The path in /proc is the host's; the mount shows the container's own group as its root."""
    put(root, {
        "proc/self/cgroup": "0::/kubepods/burstable/pod7/abc\n",
        "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
    })  # fmt: skip
    assert limits.container_memory_limit_bytes(root) == 4 * GIB


def test_an_unlimited_quota_of_version_1_is_none(root):
    put(root, {
        "proc/self/cgroup": "1:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    assert limits.cpu_quota_cores(root) is None
    assert limits.usable_cores(root) == len(limits.allowed_cores())


def test_a_system_without_these_files_says_nothing(tmp_path):
    assert limits.total_memory_bytes(tmp_path) is None
    assert limits.available_memory_bytes(tmp_path) is None
    assert limits.default_memory_limit_bytes(tmp_path) is None
    assert limits.oom_kills(tmp_path) is None


def test_this_machine():
    total, available = limits.total_memory_bytes(), limits.available_memory_bytes()
    assert total is not None
    assert available is not None
    assert 0 < available <= total
    assert limits.allowed_cores() == sorted(os.sched_getaffinity(0))
    assert 1 <= limits.usable_cores() <= (os.cpu_count() or 1)


def test_affinity_limits_the_cores():
    code = """
import os
from attnbench.device.limits import allowed_cores, usable_cores
first = allowed_cores()[0]
os.sched_setaffinity(0, {first})
assert allowed_cores() == [first]
assert usable_cores() == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)
