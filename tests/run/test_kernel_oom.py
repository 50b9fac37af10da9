"""The kernel ends a worker that outgrows its container: that case is `oom`, and the run goes on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_BYTES = 600 << 20
# Where the memory controller is, its file for a limit, by version of control groups.
CONTROLLERS = [
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
]

DRILL = """
import sys
from pathlib import Path

group, folder = map(Path, sys.argv[1:])
(group / "cgroup.procs").write_text(str(__import__("os").getpid()))

from attnbench.device.limits import available_memory_bytes
from attnbench.plan.case import Case
from attnbench.run.executor import ExecutorSettings, LocalExecutor

assert available_memory_bytes() < 700 << 20
settings = ExecutorSettings(
    preload=("numpy",), log=folder / "log", scratch=folder, task="tests.run.tasks:by_option", route=None
)
with LocalExecutor(settings) as executor:
    for do in ("ok", "fill_2_gib", "ok"):
        record = executor.submit(Case(implementation="naive", seqlen_q=8, options={"do": do}))
        print(record.status, record.reason)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory."""
    for parent, limit in CONTROLLERS:
        if not (parent / "cgroup.procs").exists():
            continue
        made = parent / f"attnbench-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            (made / limit).write_text(str(LIMIT_BYTES), encoding="ascii")
            yield made
            return
        except OSError:
            continue
        finally:
            made.rmdir()
    pytest.skip("needs the right to make a control group with a memory limit")


@pytest.mark.long
def test_a_worker_ended_by_the_kernel_is_out_of_memory(group, tmp_path):
    command = [sys.executable, "-c", DRILL, str(group), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, broken, last = done.stdout.splitlines()
    assert first == last == "ok None"
    assert broken.startswith("oom the kernel ended the process for memory; it held ")
    held = int(broken.split()[-2])
    assert LIMIT_BYTES / 2 < held <= 1.1 * LIMIT_BYTES
