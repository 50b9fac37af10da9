"""Loops of known length: read within 2 %, or the verdict says why not; never read as less than they are.

A loop lasts until its thread has had so much processor time. Undisturbed that is its time on the clock; while
another process has the core, the clock goes on and the loop does not.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from attnbench.measure.latency import measure_latency
from attnbench.measure.record import Latency
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

LENGTHS_MS = (0.5, 5.0)
WITHIN = 0.02
SLEWED = 0.001
"""A network's time may slow the clock down by half of that, and not the count of processor time."""
ATTEMPTS = 5
HOG = "while True: pass"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def read(length_ms: float, budget_s: float = 0.5) -> Latency:
    def loop() -> None:
        until = time.thread_time_ns() + length_ms * 1e6
        while time.thread_time_ns() < until:
            pass

    workload = replace(build_workload(Case(implementation="naive", seqlen_q=8)), call=loop)
    settings = MeasureSettings(warmup_s=0.02, latency_budget_s=budget_s)
    section, _ = measure_latency(workload, settings, unavailable={})
    assert section.median_ms is not None
    return section


@contextmanager
def beside_a_busy_process_on_the_same_core() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    try:
        hog = subprocess.Popen([sys.executable, "-S", "-c", HOG])  # it inherits the core
        try:
            yield
        finally:
            hog.kill()
            hog.wait()
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("length_ms", LENGTHS_MS)
def test_no_loop_is_read_as_shorter_than_it_is(length_ms):
    section = read(length_ms, budget_s=0.05)
    assert min(section.samples_ms) >= length_ms * (1 - SLEWED)
    assert section.median_ms >= length_ms * (1 - SLEWED)


@pytest.mark.long
@pytest.mark.parametrize("length_ms", LENGTHS_MS)
def test_what_is_valid_is_within_2_percent(length_ms):
    """On a quiet machine the first reading is valid; on a busy one none may be: then nothing is claimed."""
    for _ in range(ATTEMPTS):
        section = read(length_ms)
        if section.verdict == ["valid"]:
            assert section.median_ms == pytest.approx(length_ms, rel=WITHIN)
            return
    assert section.verdict
    assert "shared" in section.verdict or "noisy" in section.verdict


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a process that can be tied to a core")
def test_a_loop_that_shares_its_core_is_read_wrong_and_not_called_valid():
    with beside_a_busy_process_on_the_same_core():
        section = read(5.0)
    assert section.median_ms > 5.0 * (1 + WITHIN)
    assert "shared" in section.verdict
