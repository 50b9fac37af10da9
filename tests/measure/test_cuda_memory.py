"""The CUDA allocator's numbers, from an allocator that is only a table, and what it can't tell."""

import os
from dataclasses import replace

import pytest
import torch

from attnbench.device.nvml import process_bytes
from attnbench.measure.cuda_memory import Allocator, ask_allocator
from attnbench.measure.record import Memory
from attnbench.measure.telemetry import uuid_of
from attnbench.measure.workload import Workload, build_workload
from attnbench.plan.case import Case

MIB = 1 << 20
STRANGERS = 7 * MIB
"""What the process holds besides the workload, such as the truth that its output is compared with."""


class FakeAllocator:
    """Blocks of 512 bytes, segments of 2 MiB, statistics by the names of ``torch.cuda.memory_stats``."""

    def __init__(self, *, keeps_requested: bool = True, process: int | str = 600 * MIB) -> None:
        self.keeps_requested, self.process = keeps_requested, process
        self.current = {"allocated": STRANGERS, "requested": STRANGERS}
        self.peak = dict(self.current)
        self.reserved_peak = 0
        self.log: list[str] = []

    def allocate(self, size: int) -> None:
        self.current["requested"] += size
        self.current["allocated"] += -(-size // 512) * 512
        self.peak = {kind: max(self.peak[kind], now) for kind, now in self.current.items()}
        self.reserved_peak = max(self.reserved_peak, -(-self.current["allocated"] // (2 * MIB)) * 2 * MIB)

    def free(self, size: int) -> None:
        self.current["requested"] -= size
        self.current["allocated"] -= -(-size // 512) * 512

    def reset(self) -> None:
        self.log.append("reset")
        self.peak, self.reserved_peak = dict(self.current), 0

    def stats(self) -> dict[str, int]:
        kinds = ["allocated", *(["requested"] if self.keeps_requested else [])]
        values = {"reserved_bytes.all.peak": self.reserved_peak}
        for kind in kinds:
            values[f"{kind}_bytes.all.current"] = self.current[kind]
            values[f"{kind}_bytes.all.peak"] = self.peak[kind]
        return values

    def functions(self) -> Allocator:
        return Allocator(
            synchronize=lambda: self.log.append("synchronize"),
            empty_cache=lambda: self.log.append("empty_cache"),
            reset_peaks=self.reset,
            stats=self.stats,
            process_bytes=lambda: self.process,
        )


def asked(fake: FakeAllocator, workload: Workload) -> tuple[Memory, dict[str, str]]:
    section = Memory()
    missing: dict[str, str] = {}
    ask_allocator(workload, section, missing, allocator=fake.functions())
    return section, missing


def workload_that_allocates(fake: FakeAllocator, *sizes: int, prepared: int = 0) -> Workload:
    workload = build_workload(Case(implementation="naive", seqlen_q=17))
    call = workload.call

    def allocating():
        for size in sizes:
            fake.allocate(size)
        outputs = call()
        for size in sizes:
            fake.free(size)
        return outputs

    return replace(workload, call=allocating, prepare=lambda: fake.allocate(prepared))


INPUTS = 3 * 8 * 17 * 64 * 4


def test_requested_allocated_and_reserved_are_three_numbers():
    fake = FakeAllocator()
    section, missing = asked(fake, workload_that_allocates(fake, 1000, 3 * MIB))
    assert section.backend == "cuda-allocator"
    assert section.requested_increment_bytes == 1000 + 3 * MIB
    assert section.peak_increment_bytes == 1024 + 3 * MIB
    assert section.requested_peak_bytes == INPUTS + 1000 + 3 * MIB
    assert section.peak_bytes == INPUTS + 1024 + 3 * MIB, "the inputs fill whole blocks"
    assert section.reserved_bytes == 12 * MIB, "the strangers' too: the whole cache of the process"
    assert section.process_bytes == 600 * MIB
    assert missing == {}
    assert fake.log.index("empty_cache") < fake.log.index("reset")


def test_what_prepare_leaves_behind_is_part_of_the_increment():
    """The graph of a backward pass is held while the pass runs."""
    fake = FakeAllocator()
    section, _ = asked(fake, workload_that_allocates(fake, 1 * MIB, prepared=4 * MIB))
    assert section.peak_increment_bytes == 5 * MIB


def test_what_is_not_told_is_absent_and_says_why():
    fake = FakeAllocator(keeps_requested=False, process="NVML does not list this process")
    section, missing = asked(fake, workload_that_allocates(fake, 1 * MIB))
    assert section.requested_peak_bytes is None
    assert section.requested_increment_bytes is None
    assert section.process_bytes is None
    assert section.peak_increment_bytes == 1 * MIB
    assert missing == {
        "memory.requested_peak_bytes": "this allocator does not keep what it was asked for",
        "memory.process_bytes": "NVML does not list this process",
    }


@pytest.mark.gpu
def test_the_three_numbers_of_a_real_allocator_are_in_order():
    workload = build_workload(Case(implementation="naive", seqlen_q=1000, device="cuda", dtype="bfloat16"))
    section = Memory()
    missing: dict[str, str] = {}
    ask_allocator(workload, section, missing)
    assert section.requested_peak_bytes <= section.peak_bytes <= section.reserved_bytes
    told = process_bytes(uuid_of(torch.device("cuda:0")), os.getpid())
    if isinstance(told, int):
        assert section.process_bytes >= section.reserved_bytes
    else:
        assert missing["memory.process_bytes"] == told
