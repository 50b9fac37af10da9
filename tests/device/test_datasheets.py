"""Data sheets: each value with a source, dense, and found by what NVML calls the device."""

import pytest

from attnbench.device.datasheets import datasheets, find_datasheet


@pytest.mark.parametrize("key", datasheets())
def test_every_entry_has_a_source_and_is_consistent(key):
    sheet = datasheets()[key]
    document, _, place = sheet.sources[0].rpartition(", ")
    assert document
    assert "." in place.partition("/")[0], "where the document lies"
    rates = sheet.matmul_flops_per_s
    assert set(rates) == {"float32", "tf32", "float16", "bfloat16"}
    assert rates["float32"] <= rates["tf32"] < rates["float16"] == rates["bfloat16"]
    # Tensor cores do 16 bit at twice TF32's rate; what was printed for sparse matrices is rounded.
    assert rates["float16"] / rates["tf32"] == pytest.approx(2, rel=0.03)
    assert set(sheet.halved) <= set(rates) - {"float32"}, "float32 has no sparse form"
    assert 100e9 <= sheet.memory_bytes_per_s <= 10e12
    assert sheet.l2_bytes is None or sheet.l2_bytes % (1 << 20) == 0


@pytest.mark.parametrize(
    ("name", "bfloat16", "memory_bytes_per_s"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12, 3.35e12),
        ("NVIDIA H100 PCIe", 756e12, 2.0e12),
        ("NVIDIA H200", 989.5e12, 4.8e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 2.039e12),
        ("NVIDIA A100 80GB PCIe", 312e12, 1.935e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 1.008e12),
        ("nvidia l4", 121e12, 300e9),
        ("NVIDIA A10G", 70e12, 600e9),
        ("NVIDIA RTX 6000 Ada Generation", 364.2e12, 960e9),
        ("AMD Instinct MI300X", 1307.4e12, 5.3e12),
    ],
)
def test_a_device_is_found_by_its_name(name, bfloat16, memory_bytes_per_s):
    sheet = find_datasheet(name)
    assert sheet.matmul_flops_per_s["bfloat16"] == bfloat16
    assert sheet.memory_bytes_per_s == memory_bytes_per_s


def test_rates_are_dense_by_what_a_multiprocessor_does_in_a_clock():
    """4096 FLOPs in float16 on Hopper, 2048 on the A100, at clocks that these devices have."""
    for name, flops_a_clock in (("NVIDIA H100 80GB HBM3", 4096), ("NVIDIA A100-SXM4-40GB", 2048)):
        sheet = find_datasheet(name)
        clock_hz = sheet.matmul_flops_per_s["float16"] / sheet.multiprocessors / flops_a_clock
        assert 1.2e9 < clock_hz < 2.1e9


@pytest.mark.parametrize(
    "name", ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100", "Intel(R) Xeon(R) Processor", ""]
)
def test_a_part_of_a_device_or_another_one_has_none(name):
    assert find_datasheet(name) is None


def test_no_name_stands_for_two_devices():
    names = [name for sheet in datasheets().values() for name in sheet.names]
    assert len(names) == len(set(names))
