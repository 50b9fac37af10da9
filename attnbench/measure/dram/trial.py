"""Whether each backend works here. In: the machine. Out: a row for each backend.

Where a probe leaves hope, the backend counts a call whose traffic is known, in a process of its own:
`python -m attnbench.measure.dram.trial NAME`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import msgspec

from attnbench.device.probes import Probe
from attnbench.device.requirements import Finding
from attnbench.measure.record import one_line

from .audit import audit
from .backend import Backend, BackendError, DramBytes
from .choose import BACKENDS, LIMIT_S
from .process import run_profiler


def dram_probes() -> list[Probe]:
    """Every backend of DRAM bytes in the order in which they are tried."""
    rows = []
    for backend in BACKENDS:
        finding = backend.probe()
        if finding.available:
            finding = _in_a_process(backend.NAME)
        rows.append(Probe("traffic", f"dram: {backend.NAME}", *finding))
    return rows


def try_backend(backend: Backend) -> Finding:
    """Count a call of known traffic."""
    from .job import known_job

    try:
        job = known_job("cuda")
        found = backend.measure(job, LIMIT_S)
    except BackendError as error:
        return Finding(False, str(error), error.fix)
    except Exception as error:
        return Finding(False, f"{type(error).__name__}: {error}")
    return judged(found, job.resident_bytes // 2)


def judged(found: DramBytes, bytes_each_way: int) -> Finding:
    """Say how what was found compares with what such a call reads and writes."""
    ratios = audit(found, bytes_each_way, bytes_each_way)
    if ratios.read_ratio is None:
        share = (found.total or 0) / (2 * bytes_each_way)
        return Finding(True, f"{found.note or 'counted'}: {share:.3f} of the bytes of a known call")
    words = f"counted {ratios.read_ratio:.3f} of the bytes that a known call reads"
    if ratios.write_ratio is not None:
        words += f", {ratios.write_ratio:.3f} of those it writes"
    return Finding(ratios.agrees, words)


def main(name: str) -> None:
    """Try the backend of this name and print what came of it as a line of JSON."""
    backend = next(one for one in BACKENDS if name == one.NAME)
    print(msgspec.json.encode(try_backend(backend)).decode())


def _in_a_process(name: str) -> Finding:
    command = [sys.executable, "-m", "attnbench.measure.dram.trial", name]
    try:
        with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
            lines = run_profiler(command, 2 * LIMIT_S, Path(folder)).splitlines()
        return msgspec.json.decode(lines[-1] if lines else "", type=Finding)
    except BackendError as error:
        return Finding(False, str(error))
    except msgspec.DecodeError:
        return Finding(False, one_line(f"the trial crashed: {lines[-1] if lines else 'it said nothing'}"))


if __name__ == "__main__":
    main(sys.argv[1])
