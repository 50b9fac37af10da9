"""NVML's GPM metrics (Hopper and later): how busy the memory was while something ran.

In: a GPU's UUID, the work. Out: per cent of the peak bandwidth, and seconds. Counters need not be permitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from attnbench.device import nvml

LEAST_S = 0.1
"""NVML's documentation: two samples lie more than 100 ms apart."""


class GpmError(Exception):
    """GPM said nothing; the reason is in words."""


def supports_gpm(uuid: str) -> bool:
    """Whether this GPU offers GPM."""
    try:
        with nvml.library() as nv:
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            return bool(nv.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except Exception:  # an older driver, another GPU, no library: all of them say no
        return False


def dram_use(uuid: str, work: Callable[[], None]) -> tuple[float, float]:
    """Per cent of the memory's peak bandwidth that was used while `work` ran, and the seconds in between.

    Raises:
        GpmError: NVML refuses, or `work` was too short for two samples.
    """
    try:
        with nvml.library() as nv:
            return _sampled(nv, nv.nvmlDeviceGetHandleByUUID(uuid), work)
    except nvml.Unavailable as reason:
        raise GpmError(str(reason)) from None


def _sampled(nv: Any, handle: Any, work: Callable[[], None]) -> tuple[float, float]:
    samples: list[Any] = []
    try:
        try:
            samples += [nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()]
            nv.nvmlGpmSampleGet(handle, samples[0])
        except nv.NVMLError as error:
            raise GpmError(f"NVML: {error}") from None
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        if seconds < LEAST_S:
            raise GpmError(f"two samples {seconds:.3f} s apart are too close")
        try:
            nv.nvmlGpmSampleGet(handle, samples[1])
            return _metric(nv, *samples), seconds
        except nv.NVMLError as error:
            raise GpmError(f"NVML: {error}") from None
    finally:
        for sample in samples:
            nv.nvmlGpmSampleFree(sample)


def _metric(nv: Any, before: Any, after: Any) -> float:
    asked = nv.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nv.NVML_GPM_METRICS_GET_VERSION, 1
    asked.sample1, asked.sample2 = before, after
    asked.metrics[0].metricId = nv.NVML_GPM_METRIC_DRAM_BW_UTIL
    nv.nvmlGpmMetricsGet(asked)
    if asked.metrics[0].nvmlReturn != nv.NVML_SUCCESS:
        raise nv.NVMLError(asked.metrics[0].nvmlReturn)
    return float(asked.metrics[0].value)
