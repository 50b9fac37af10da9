"""Ceilings: known times give known rates, the fastest sample counts, and what can't be had is named."""

import msgspec
import pytest
import torch

from attnbench.measure import ceiling_calls, ceilings
from attnbench.measure.ceiling_calls import LAUNCHES, bandwidths, exponentials, launches, products
from attnbench.measure.ceilings import Ceilings, Stopwatch, ceilings_task, measure_ceilings
from attnbench.measure.cpu_timer import CpuTimer
from attnbench.measure.timing import Timing

CPU = torch.device("cpu")
MS = 1_000_000


class Telling:
    """A timer whose samples are told; it calls once, so that what is called is tried."""

    name, cache = "told", "warm"

    def __init__(self, *samples_ms: float) -> None:
        self.samples_ms = list(samples_ms)

    def time(self, task, rule, warmup_s) -> Timing:
        task.call()
        return Timing(samples_ms=self.samples_ms, first_call_s=0.0, below_resolution=not self.samples_ms)


def watch(*samples_ms: float) -> Stopwatch:
    return Stopwatch(Telling(*samples_ms), budget_s=0.1)


@pytest.fixture
def small(monkeypatch):
    """Sizes that take no time."""
    monkeypatch.setattr(ceiling_calls, "PRODUCT_SIZES", {"cpu": (256, 512)})
    monkeypatch.setattr(ceiling_calls, "LEAST_BUFFER_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(ceilings, "last_level_cache_bytes", lambda: 1 << 20)


def test_the_fastest_sample_counts():
    assert watch(3.0, 1.0, 2.0).fastest_s(lambda: None) == 1e-3
    assert watch().fastest_s(lambda: None) is None


def test_a_product_is_2_n_cubed_flops_and_the_best_size_counts(small):
    # Each size is told to take a millisecond, so the larger is the faster.
    assert products(watch(1.0), CPU, "float32") == pytest.approx(2 * 512**3 / 1e-3)
    # 8 ms are long enough: no larger one is tried.
    assert products(watch(8.0), CPU, "float32") == pytest.approx(2 * 256**3 / 8e-3)


def test_bytes_read_and_written_are_counted(small):
    found = bandwidths(watch(1.0), CPU, 1 << 20, None)
    assert found["buffer_bytes"] == pytest.approx(4 << 20, rel=1e-4), "four times the cache"
    for name in ("copy_bytes_per_s", "triad_bytes_per_s", "read_bytes_per_s"):
        assert found[name] == pytest.approx(found["buffer_bytes"] / 1e-3, rel=1e-4), name


def test_pieces_go_round_the_whole_buffer(small, monkeypatch):
    """A sample of one piece never meets what the one before it left in a cache."""
    monkeypatch.setattr(ceiling_calls, "PIECE_BYTES_A_THREAD", 1 << 18)
    read: list[int] = []

    class Counting(Telling):
        def time(self, task, rule, warmup_s) -> Timing:
            for _ in range(16):
                task.call()
            return super().time(task, rule, warmup_s)

    original = torch.Tensor.sum

    def noting(x: torch.Tensor) -> torch.Tensor:
        read.append(x.data_ptr())
        return original(x)

    monkeypatch.setattr(torch.Tensor, "sum", noting)
    found = bandwidths(Stopwatch(Counting(1.0), 0.1), CPU, 1 << 20, None)
    threads = torch.get_num_threads()
    assert found["read_bytes_per_s"] == pytest.approx(threads * (1 << 18) / 1e-3, rel=1e-2)
    assert len(set(read)) >= min(15, found["buffer_bytes"] // (threads << 18)), "every piece another one"


def test_exponentials_and_launches_are_counted():
    threads = torch.get_num_threads()
    assert exponentials(watch(2.0), CPU)["exp2_per_s"] == pytest.approx(32768 * threads / 2e-3)
    assert launches(watch(0.5), CPU)["launch_overhead_us"] == pytest.approx(500 / LAUNCHES)


def test_all_of_a_device(small):
    found = measure_ceilings(CPU, timer=Telling(4.0), dtypes=["bfloat16"])
    flops_per_s = 2 * 512**3 / 4e-3
    assert found.matmul_flops_per_s == pytest.approx(
        dict.fromkeys(("bfloat16", "float16", "float32"), flops_per_s)
    ), "its own type and those in which it may be computed; TF32 is for CUDA alone"
    assert (found.timer, found.threads) == ("told", torch.get_num_threads())
    assert found.cache_bytes == 1 << 20
    assert found.memory_bytes_per_s == found.copy_bytes_per_s
    assert found.name
    assert found.datasheet is None
    assert found.unavailable == {}
    assert set(found.verdict) <= {"valid", "shared"}


def test_what_fails_is_named_and_costs_nothing_else(small, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")

    monkeypatch.setattr(torch, "exp2", refused)
    found = measure_ceilings(CPU, timer=Telling(1.0), dtypes=["float32"], memory_limit_bytes=4 << 20)
    assert found.matmul_flops_per_s
    assert found.copy_bytes_per_s is None
    assert found.unavailable == {
        "copy_bytes_per_s": "RuntimeError: needs 4194304 bytes, 1048576 bytes may be used",
        "exp2_per_s": "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'",
    }
    assert found.launch_overhead_us == pytest.approx(10)


def test_what_the_timer_does_not_see_is_absent(small):
    found = measure_ceilings(CPU, timer=Telling(), dtypes=["float32"])
    assert found.matmul_flops_per_s == {}
    assert set(found.unavailable) == {
        "matmul_flops_per_s.float32",
        "copy_bytes_per_s",
        "exp2_per_s",
        "launch_overhead_us",
    }


def test_real_rates_are_plain_data_and_of_this_world(small):
    """On any machine of this century, however busy: no timing is asserted, only that units are right."""
    answer = ceilings_task({"device": "cpu", "dtypes": ["float32"]}, {"budget_s": 0.001}, {})
    found = msgspec.convert(msgspec.json.decode(msgspec.json.encode(answer)), Ceilings)
    assert found.timer == CpuTimer().name
    assert 1e8 < found.matmul_flops_per_s["float32"] < 1e15
    assert 1e7 < found.copy_bytes_per_s < 1e13
    assert 1e6 < found.exp2_per_s < 1e13
    assert 0.01 < found.launch_overhead_us < 1e4


def test_the_faster_of_two_measurements():
    one = Ceilings(name="one", matmul_flops_per_s={"float32": 2.0}, copy_bytes_per_s=5.0, verdict=["valid"])
    other = Ceilings(
        name="other",
        matmul_flops_per_s={"float32": 3.0, "tf32": 4.0},
        copy_bytes_per_s=1.0,
        read_bytes_per_s=9.0,
    )
    both = one.or_faster(other)
    assert both.matmul_flops_per_s == {"float32": 3.0, "tf32": 4.0}
    assert (both.copy_bytes_per_s, both.triad_bytes_per_s, both.read_bytes_per_s) == (5.0, None, 9.0)
    assert (both.name, both.verdict) == ("one", ["valid"])


@pytest.mark.gpu
def test_a_gpu_reaches_no_more_than_its_data_sheet():
    found = measure_ceilings(torch.device("cuda"))
    assert not found.unavailable
    assert found.threads is None
    assert found.timer == "cuda-events"
    for name, rate in (found.datasheet or {}).get("matmul_flops_per_s", {}).items():
        assert 0.3 * rate < found.matmul_flops_per_s[name] < 1.05 * rate, name
    if found.datasheet is not None:
        assert 0.5 * found.datasheet["memory_bytes_per_s"] < found.memory_bytes_per_s
        assert found.memory_bytes_per_s < 1.05 * found.datasheet["memory_bytes_per_s"]
    # 16 exponentials a clock of a multiprocessor, at some 2 GHz.
    properties = torch.cuda.get_device_properties(0)
    assert 0.2 < found.exp2_per_s / (properties.multi_processor_count * 16 * 2e9) < 2.5
    assert 0.5 < found.launch_overhead_us < 100
