"""What else the processor did: our own time, others' time, switches."""

import subprocess
import sys
import time

from attnbench.device.activity import difference, load_average, snapshot

BUSY = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass"


def spin(seconds: float) -> None:
    """Use this much processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_our_own_work_is_ours():
    before = snapshot()
    spin(0.3)
    activity = difference(before, snapshot())
    assert 0.29 <= activity.own_cpu_s < 1.0
    assert activity.wall_s >= 0.29
    assert activity.foreign_cpu_s is not None
    assert activity.foreign_cpu_s >= 0.0


def test_somebody_elses_work_is_foreign():
    before = snapshot()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    activity = difference(before, snapshot())
    assert activity.foreign_cpu_s is not None
    # It had two seconds of wall time; on a busy machine it got a part of them, and the others the rest.
    assert activity.foreign_cpu_s > 1.0
    assert activity.own_cpu_s < 0.5
    assert activity.voluntary_switches >= 1


def test_waiting_for_a_core_is_seen():
    """Two of us on one core: each is put aside, and waits about as long as it runs."""
    code = """
import os, time
from attnbench.device.activity import difference, snapshot
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
child = os.fork()
before = snapshot()
end = time.process_time() + 0.3
while time.process_time() < end: pass
activity = difference(before, snapshot())
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
print(activity.involuntary_switches, activity.runqueue_wait_s)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    switches, waited = done.stdout.split()
    assert int(switches) > 0
    assert float(waited) > 0.1


def test_a_reading_is_cheap():
    started = time.process_time()
    for _ in range(100):
        snapshot()
    assert (time.process_time() - started) / 100 < 2e-3


def test_load_average():
    load = load_average()
    assert load is not None
    assert load >= 0.0
