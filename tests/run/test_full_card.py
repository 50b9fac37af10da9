"""A card that another process fills: its cases are `oom` with bytes, found before or while they run, and the
run goes on."""

from pathlib import Path

import pytest
import torch

from attnbench.device.hardware import CudaDevice
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.run.executor import ExecutorSettings, InProcessExecutor
from attnbench.run.launch import memory_limits
from attnbench.run.worker import describe_failure
from tests.device.fake_nvml import UUID, Card, install

MIB = 1 << 20
GIB = 1 << 30
GPU = CudaDevice(0, UUID, "Card", {})


def test_what_another_process_holds_is_not_planned_with(monkeypatch):
    install(
        monkeypatch, Card(total_bytes=80 * GIB, used_bytes=80 * GIB - 500 * MIB, processes=[(7, 79 * GIB)])
    )
    assert memory_limits(None, GPU)["cuda"] == int(0.9 * 500 * MIB)
    install(monkeypatch, Card(total_bytes=80 * GIB, used_bytes=80 * GIB))
    assert memory_limits(None, GPU)["cuda"] == 0
    assert memory_limits(3 * GIB, GPU)["cuda"] == 3 * GIB, "what was asked for is not second-guessed"


@pytest.mark.parametrize("free", [0, 200 * MIB])
def test_a_case_that_finds_no_room_is_oom_with_its_bytes_and_the_next_one_runs(monkeypatch, tmp_path, free):
    install(monkeypatch, Card(total_bytes=80 * GIB, used_bytes=80 * GIB - free, processes=[(7, 79 * GIB)]))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    settings = ExecutorSettings(
        measure=MeasureSettings(metrics=("memory",)),
        memory_limits=memory_limits(None, GPU),
        scratch=tmp_path,
        log=Path(tmp_path, "log"),
        route=None,
    )
    small = Case(implementation="naive", seqlen_q=16)
    filled = Case(implementation="naive", seqlen_q=8192, device="cuda", dtype="float16")
    with InProcessExecutor(settings) as executor:
        records = [executor.submit(case) for case in (small, filled, small)]
    assert [record.status for record in records] == ["ok", "oom", "ok"]
    needed = records[1].memory.predicted_peak_bytes
    assert needed > 2 * 8 * 8192 * 8192 * 2, "two score matrices"
    limit = int(0.9 * free)
    assert records[1].reason == f"predicted to need {needed} bytes, {limit} bytes may be used"


FILLED_MEANWHILE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
    "1.50 GiB is free. Process 4711 has 77.00 GiB memory in use. Of the allocated memory 100.00 MiB is "
    "allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated."
)


def test_a_card_that_fills_up_while_a_case_runs():
    answer = describe_failure(torch.OutOfMemoryError(FILLED_MEANWHILE))
    assert answer.status == "oom"
    asked, free = 2 * GIB, 3 * GIB // 2
    assert (
        answer.reason == f"out of memory: tried to allocate {asked} bytes, {free} bytes of the GPU were free"
    )


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at another call.",
        "CUDA driver error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_no_room_for_a_context_or_a_kernel_is_out_of_memory_too(words):
    answer = describe_failure(RuntimeError(words))
    assert answer.status == "oom"
    assert answer.reason.startswith("out of memory: ")


def test_other_errors_of_a_device_are_errors():
    words = "CUDA error: an illegal memory access was encountered"
    assert describe_failure(RuntimeError(words)).status == "error"
    assert describe_failure(ValueError("out of memory")).status == "error"
