"""The arithmetic of GPM, and when it is refused: an NVML made by hand after its header takes part."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from attnbench.device import gpm, nvml
from attnbench.measure.dram import nvml_gpm
from attnbench.measure.dram.backend import BackendError
from tests.measure.dram.fakes import small_job

H200 = {"max_memory_clock_mhz": 3201, "memory_bus_bits": 6144}


class NVMLError(Exception):
    pass


def library(percent: float, result: int = 0, refused: bool = False) -> SimpleNamespace:
    freed: list[int] = []

    def sample(handle, which) -> None:
        if refused:
            raise NVMLError("Not Supported")

    def read(asked) -> None:
        assert (asked.version, asked.numMetrics, asked.metrics[0].metricId) == (1, 1, 10)
        asked.metrics[0].value, asked.metrics[0].nvmlReturn = percent, result

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_SUCCESS=0,
        NVML_GPM_METRICS_GET_VERSION=1,
        NVML_GPM_METRIC_DRAM_BW_UTIL=10,
        c_nvmlGpmMetricsGet_t=lambda: SimpleNamespace(metrics=[SimpleNamespace()]),
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlGpmQueryDeviceSupport=lambda handle: SimpleNamespace(isSupportedDevice=1),
        nvmlGpmSampleAlloc=lambda: len(freed),
        nvmlGpmSampleGet=sample,
        nvmlGpmSampleFree=freed.append,
        nvmlGpmMetricsGet=read,
        freed=freed,
    )


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def use(nv: SimpleNamespace) -> SimpleNamespace:
        @contextmanager
        def started():
            yield nv

        monkeypatch.setattr(nvml, "library", started)
        monkeypatch.setattr(nvml, "gpu_facts", lambda uuid: H200)
        return nv

    monkeypatch.setattr(gpm, "LEAST_S", 0.0)
    monkeypatch.setattr(nvml_gpm, "LEAST_S", 0.01)
    properties = SimpleNamespace(L2_cache_size=8, uuid="1-2")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    return use


def test_the_peak_of_an_h200():
    assert nvml_gpm.peak_bytes_per_s(3201, 6144) == 4.916736e12


def test_the_estimate_by_hand():
    """Half of 4.916736 TB/s for 2 s, in 1,000 calls: 4.916736 GB each."""
    assert nvml_gpm.estimate(50.0, 2.0, 1000, 4.916736e12) == 4_916_736_000


@pytest.mark.parametrize("percent", [0.0, -1.0, 100.5, float("nan")])
def test_what_is_no_percentage_is_no_estimate(percent):
    with pytest.raises(BackendError, match="% of the bandwidth"):
        nvml_gpm.estimate(percent, 1.0, 1, 1e12)


def test_calls_fill_the_time_and_the_samples_are_freed(install):
    nv = install(library(25.0))
    calls = []
    found = nvml_gpm.measure(small_job(call=lambda: calls.append(1), resident_bytes=100), 30)
    assert found.note == "estimate"
    assert found.read is found.write is None
    assert found.total > 0
    assert (len(calls) - 2) % nvml_gpm.CALLS_A_CHUNK == 0
    assert len(nv.freed) == 2


def test_a_small_cold_call_is_refused(install):
    """A second of calls would find it in the cache: not the call that was asked about."""
    install(library(25.0))
    with pytest.raises(BackendError, match="15 bytes in the L2 cache"):
        nvml_gpm.measure(small_job(resident_bytes=15), 30)
    assert nvml_gpm.measure(small_job(resident_bytes=15, cold=False), 30).total > 0


def test_a_call_that_needs_preparation_is_refused(install):
    install(library(25.0))
    with pytest.raises(BackendError, match="precede each call"):
        nvml_gpm.measure(small_job(repeatable=False, resident_bytes=100), 30)


def test_nvml_may_refuse(install, monkeypatch):
    nv = install(library(25.0, refused=True))
    with pytest.raises(BackendError, match="NVML: Not Supported"):
        nvml_gpm.measure(small_job(resident_bytes=100), 30)
    assert len(nv.freed) == 2
    install(library(25.0, result=3))
    with pytest.raises(BackendError, match="NVML: 3"):
        nvml_gpm.measure(small_job(resident_bytes=100), 30)
    monkeypatch.setattr(gpm, "LEAST_S", 60.0)
    with pytest.raises(BackendError, match="too close"):
        nvml_gpm.measure(small_job(resident_bytes=100), 30)


def test_without_the_clock_there_is_no_peak(install, monkeypatch):
    install(library(25.0))
    monkeypatch.setattr(nvml, "gpu_facts", lambda uuid: {"max_memory_clock_mhz": 3201})
    with pytest.raises(BackendError, match="neither the memory's clock nor its width"):
        nvml_gpm.measure(small_job(resident_bytes=100), 30)


def test_support_is_asked_and_any_failure_is_a_no(install):
    install(library(25.0))
    assert gpm.supports_gpm("GPU-a")
    install(SimpleNamespace())
    assert not gpm.supports_gpm("GPU-a")
