"""Cores: a worker of a CPU case keeps to one of each physical core where there are enough of them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from attnbench.device import hardware
from attnbench.device.limits import allowed_cores, in_ranges
from attnbench.plan.case import Case
from attnbench.run.executor import ExecutorSettings, LocalExecutor

CPU = Case(implementation="naive", seqlen_q=8)


@pytest.mark.parametrize(
    ("cores", "written"),
    [([], ""), ([5], "5"), ([0, 1], "0-1"), ([0, 1, 2, 3, 8], "0-3,8"), ([0, 2, 4, 5], "0,2,4-5")],
)
def test_cores_are_written_as_the_kernel_does(cores, written):
    assert in_ranges(cores) == written


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own list is in /proc")
def test_and_that_is_what_the_kernel_says():
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    assert in_ranges(allowed_cores()) == line.split()[1]


def test_one_core_of_each_pair_is_kept(monkeypatch, tmp_path):
    """Cores 0 and 2 are halves of one, so are 1 and 3; the user has excluded core 4, not its other half."""
    for core in range(6):
        folder = tmp_path / f"cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(["0,2", "1,3", "0,2", "1,3", "4-5", "4-5"][core])
        (folder / "physical_package_id").write_text("0")
    monkeypatch.setattr(hardware, "_SYSTEM", tmp_path)
    monkeypatch.setattr(hardware, "allowed_cores", lambda: [0, 1, 2, 3, 5])
    assert hardware.physical_cores() == [0, 1, 5]


def cores_for(case: Case, **settings) -> list[int] | None:
    return ExecutorSettings(**settings).job(case).context["cores"]


def test_more_cores_than_threads_are_needed():
    assert cores_for(CPU, threads=2, cores=(0, 2, 4)) == [0, 2, 4]
    assert cores_for(CPU, threads=3, cores=(0, 2, 4)) is None, "a fixed core a thread has longer tails"
    assert cores_for(structs.replace(CPU, threads=8), threads=2, cores=(0, 2, 4)) is None
    assert cores_for(structs.replace(CPU, device="cuda"), threads=2, cores=(0, 2, 4)) is None


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores")
def test_a_worker_keeps_to_its_cores_and_the_next_case_has_all_of_them_again(tmp_path):
    first = allowed_cores()[0]
    settings = ExecutorSettings(
        threads=1,
        cores=(first, 1 << 14),  # a core that is not there is no reason to stop
        scratch=tmp_path,
        log=tmp_path / "log",
        preload=(),
        task="tests.run.core_tasks:cores",
        route=None,
    )
    before = os.sched_getaffinity(0)
    with LocalExecutor(settings, "implementation") as executor:
        kept = executor.submit(CPU).provenance.cores
        executor.settings = replace(settings, threads=2)
        after = executor.submit(structs.replace(CPU, seqlen_q=9, seqlen_k=9)).provenance.cores
    assert kept == str(first)
    assert after == in_ranges(sorted(before))
    assert os.sched_getaffinity(0) == before
