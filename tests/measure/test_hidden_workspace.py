"""What operators allocate inside themselves: a known amount is found, and nothing where there is nothing."""

import ctypes
import dataclasses
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attnbench.device import high_water as module
from attnbench.device.high_water import RESOLUTION_BYTES, NoHighWaterError, peak_increment_bytes
from attnbench.measure.counting import count_call
from attnbench.measure.hidden_workspace import FIELD, hidden_workspace_bytes
from attnbench.measure.pipeline import measure_case
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self")


def touch(size_bytes: int) -> None:
    """Allocate behind PyTorch's back, write to every page, and free."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    block = libc.malloc(ctypes.c_size_t(size_bytes))
    ctypes.memset(block, 1, size_bytes)
    libc.free(ctypes.c_void_p(block))


def nothing() -> None:
    pass


@pytest.fixture
def full_of_holes() -> Iterator[None]:
    """A heap with large free blocks between small ones that stay, as in a process that has worked before."""
    kept = []
    for size in (1, 3, 7, 15, 2, 6, 12):
        block = torch.ones(size * MIB // 4)
        kept.append(torch.ones(100))
        del block
    yield
    del kept


def test_the_heap_of_a_thread_that_has_ended_hides_nothing():
    """Its large free end stays in memory, and the next thread gets it."""

    def leave_a_heap() -> None:
        blocks = [torch.ones(MIB // 4) for _ in range(12)]
        blocks.append(torch.ones(100))
        del blocks

    for _ in range(3):
        threads = [threading.Thread(target=leave_a_heap) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = peak_increment_bytes(nothing, lambda: touch(2 * MIB))
        assert abs(found - 2 * MIB) < RESOLUTION_BYTES


@pytest.mark.parametrize("size_bytes", [2 * MIB, 40 * MIB])
@pytest.mark.usefixtures("full_of_holes")
def test_a_block_that_came_and_went_is_seen_each_time(size_bytes):
    for _ in range(3):
        assert abs(peak_increment_bytes(nothing, lambda: touch(size_bytes)) - size_bytes) < RESOLUTION_BYTES


@pytest.mark.usefixtures("full_of_holes")
def test_two_blocks_at_a_time_add_up_and_one_after_the_other_do_not():
    def work() -> None:
        first = torch.ones(8 * MIB // 4)
        del first
        second, third = torch.ones(5 * MIB // 4), torch.ones(6 * MIB // 4)
        del second, third

    peak_increment_bytes(nothing, work)  # the first time, code is loaded as well
    assert abs(peak_increment_bytes(nothing, work) - 11 * MIB) < RESOLUTION_BYTES


def test_what_was_prepared_is_no_part_of_the_peak_and_its_place_is_given_back():
    held: list[torch.Tensor] = []

    def prepare() -> None:
        held[:] = [torch.ones(4 * MIB // 4)]

    def work() -> None:
        held.clear()
        held.append(torch.ones(6 * MIB // 4))

    found = []
    for _ in range(2):
        held.clear()
        found.append(peak_increment_bytes(prepare, work))
    assert abs(found[1] - 2 * MIB) < RESOLUTION_BYTES


def test_what_goes_wrong_inside_comes_out():
    with pytest.raises(ZeroDivisionError):
        peak_increment_bytes(nothing, lambda: 1 // 0)


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd", "bwd"])
@pytest.mark.parametrize("hidden_mib", [0, 3, pytest.param(24, marks=pytest.mark.long)])
@pytest.mark.usefixtures("full_of_holes")
def test_what_a_call_allocates_in_itself_is_told_from_its_tensors(mode, hidden_mib):
    """Hidden is what goes beyond the peak of the tensors, wherever in the call it is held."""
    workload = build_workload(Case(implementation="naive", seqlen_q=512, num_heads=2, mode=mode))
    counts = count_call(workload)

    def call():
        if hidden_mib:  # before anything else, so beside nothing but what was prepared
            touch(hidden_mib * MIB + counts.call_peak_bytes - counts.prepared_bytes)
        return workload.call()

    unavailable: dict[str, str] = {}
    found = hidden_workspace_bytes(dataclasses.replace(workload, call=call), counts, unavailable)
    assert unavailable == {}
    assert found is not None
    assert abs(found - hidden_mib * MIB) <= RESOLUTION_BYTES


def test_a_record_has_it_or_says_why_not():
    settings = MeasureSettings(metrics=("memory", "workspace"))
    record = measure_case(Case(implementation="naive", seqlen_q=64), settings)
    assert record.memory is not None
    assert record.memory.hidden_workspace_bytes == 0
    assert FIELD not in record.unavailable
    compiled = build_workload(Case(implementation="naive", seqlen_q=16))
    unavailable: dict[str, str] = {}
    assert hidden_workspace_bytes(compiled, None, unavailable) is None
    assert "compiled" in unavailable[FIELD]


def test_where_the_system_does_not_tell_nothing_is_claimed(monkeypatch):
    workload = build_workload(Case(implementation="naive", seqlen_q=16))
    counts = count_call(workload)
    for name, path in (("_STATUS", Path("/nowhere/status")), ("_CLEAR", Path("/nowhere/clear_refs"))):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, path)
            unavailable: dict[str, str] = {}
            assert hidden_workspace_bytes(workload, counts, unavailable) is None
            assert str(path) in unavailable[FIELD]
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda _: object())
        with pytest.raises(NoHighWaterError, match="glibc"):
            peak_increment_bytes(nothing, nothing)
