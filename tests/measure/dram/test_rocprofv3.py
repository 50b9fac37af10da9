"""What rocprofv3 writes, and what it does when it does not; its samples were made by hand."""

import pytest

from attnbench.measure.dram import rocprofv3
from attnbench.measure.dram.backend import BackendError
from tests.measure.dram.fakes import ANSWERS, SAMPLES, put_on_path, sample, small_job

WRITES = """
folder = os.path.join(args[args.index('--output-directory') + 1], 'pass_1')
os.makedirs(folder)
import shutil
shutil.copy({sample!r}, os.path.join(folder, 'dram_counter_collection.csv'))
"""


def test_kilobytes_of_1024_bytes_by_dispatch():
    found = rocprofv3.parse(sample("rocprofv3-counter_collection.csv"))
    assert found.read == 57350.03125 * 1024 + 128 * 1024
    assert found.write == 57344 * 1024 + 64 * 1024
    assert found.total == found.read + found.write
    assert [(name.split("<")[0], one.write) for name, one in found.kernels] == [
        ("void at::native::vectorized_elementwise_kernel", 58_720_256),
        ("softmax", 65_536),
    ]


def test_zeros_are_no_count():
    with pytest.raises(BackendError, match="fixed clocks") as error:
        rocprofv3.parse(sample("rocprofv3-zeros.csv"))
    assert "STABLE_STD" in (error.value.fix or "")


def test_a_counter_that_is_missing_is_absent():
    lines = [line for line in sample("rocprofv3-counter_collection.csv").splitlines() if "WRITE" not in line]
    found = rocprofv3.parse("\n".join(lines))
    assert found.read is not None
    assert found.write is found.total is None


@pytest.mark.parametrize("text", ["", "nonsense", '"Dispatch_Id","Kernel_Name"\n1,"k"\n'])
def test_garbage_is_no_table(text):
    with pytest.raises(BackendError, match="wrote no table"):
        rocprofv3.parse(text)


def test_other_counters_are_not_bytes():
    text = (
        sample("rocprofv3-counter_collection.csv").replace("FETCH_SIZE", "SQ_WAVES").replace("WRITE_", "X_")
    )
    with pytest.raises(BackendError, match="neither FETCH_SIZE nor WRITE_SIZE"):
        rocprofv3.parse(text)


def test_the_table_is_found_wherever_a_version_puts_it(tmp_path, monkeypatch):
    script = WRITES.format(sample=str(SAMPLES / "rocprofv3-counter_collection.csv"))
    put_on_path(tmp_path, "rocprofv3", script + ANSWERS, monkeypatch)
    assert rocprofv3.measure(small_job(), 30).write == 57344 * 1024 + 64 * 1024


def test_a_child_that_died_was_counted_in_part_and_does_not_count(tmp_path, monkeypatch):
    script = WRITES.format(sample=str(SAMPLES / "rocprofv3-counter_collection.csv"))
    put_on_path(tmp_path, "rocprofv3", script, monkeypatch)
    with pytest.raises(BackendError, match="died before its call was over"):
        rocprofv3.measure(small_job(), 30)


def test_an_unknown_counter_leaves_no_table_and_a_good_exit_code(tmp_path, monkeypatch):
    put_on_path(tmp_path, "rocprofv3", "print('W: skipping counter FETCH_SIZE')\n", monkeypatch)
    with pytest.raises(BackendError, match="wrote no table; its last words: W: skipping counter FETCH_SIZE"):
        rocprofv3.measure(small_job(), 30)


def test_without_an_amd_gpu_nothing_helps(monkeypatch, tmp_path):
    monkeypatch.setattr("attnbench.device.requirements.AMD_DRIVER", tmp_path / "kfd")
    finding = rocprofv3.probe()
    assert not finding.available
    assert "no AMD GPU" in finding.detail
    assert finding.fix is None


def test_a_torch_for_cuda_is_named(monkeypatch, tmp_path):
    (tmp_path / "kfd").touch()
    monkeypatch.setattr("attnbench.device.requirements.AMD_DRIVER", tmp_path / "kfd")
    monkeypatch.setattr(rocprofv3, "version_of", lambda package: "2.13.0+cu130")
    assert "torch 2.13.0+cu130 was not built for ROCm" in rocprofv3.probe().detail
    monkeypatch.setattr(rocprofv3, "version_of", lambda package: "2.13.0+rocm7.1")
    assert rocprofv3.probe().detail == "rocprofv3 is not on PATH"
    put_on_path(tmp_path, "rocprofv3", "", monkeypatch)
    assert rocprofv3.probe().available
