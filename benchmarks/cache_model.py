"""What an L2 model predicts that a case reads from memory, in a process of its own whose Triton interprets.

    python -m benchmarks.cache_model CASE TARGET

In: a case as JSON, whatever its device, and a target such as `sm_90`. Out: a line of JSON, a `Figure`. The
kernels are interpreted whole, on the CPU and with its tiles; only what runs Triton kernels there has any.
"""

import os
import sys
import tempfile
from pathlib import Path

import msgspec

from attnbench.contract.errors import UsageError
from attnbench.device.targets import find_target
from attnbench.measure.dram.backend import BackendError
from attnbench.measure.dram.process import run_profiler
from attnbench.measure.interpreter import trace_kernels
from attnbench.measure.l2_model import dram_curve
from attnbench.measure.record import one_line
from attnbench.plan.case import Case
from benchmarks.pair_table import L2_MODEL, Figure


def predicted(case: Case, target: str, timeout_s: float) -> Figure:
    """Return the prediction of another process, or why it came to none."""
    command = [sys.executable, "-m", "benchmarks.cache_model", msgspec.json.encode(case).decode(), target]
    lines: list[str] = []
    try:
        with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
            lines = run_profiler(command, timeout_s, Path(folder)).splitlines()
        return msgspec.json.decode(lines[-1] if lines else "", type=Figure)
    except BackendError as error:
        return Figure(L2_MODEL, reason=str(error))
    except msgspec.DecodeError:
        return Figure(L2_MODEL, reason=one_line(f"it crashed: {lines[-1] if lines else 'it said nothing'}"))


def predict(case: Case, target: str) -> Figure:
    """Return the bytes that a case's kernels read, behind the L2 cache of the target's device."""
    from attnbench.measure.workload import build_workload

    try:
        cache = find_target(target).l2
    except UsageError as error:
        return Figure(L2_MODEL, reason=str(error))
    if cache is None:
        return Figure(L2_MODEL, reason=f"{target} has more than one L2 cache; the model is of one")
    workload = build_workload(msgspec.structs.replace(case, device="cpu"))
    if not workload.interpreted:
        why = f"on the CPU {case.implementation} runs no kernel that Triton interprets"
        return Figure(L2_MODEL, reason=why)
    with workload.environment(), trace_kernels(keep_accesses=True) as trace:
        workload.prepare()
        trace.begin_call()
        workload.call()
    curve = dram_curve(trace.accesses(cache.multiprocessors))
    words = f"{cache.device}, {cache.bytes >> 20} MiB, {cache.multiprocessors} programs at a time"
    return Figure(L2_MODEL, curve.read_bytes(cache.bytes), remark=words)


def main(arguments: list[str]) -> None:
    """Predict and print."""
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    text, target = arguments
    try:
        figure = predict(msgspec.json.decode(text, type=Case), target)
    except Exception as error:
        figure = Figure(L2_MODEL, reason=one_line(f"{type(error).__name__}: {error}"))
    print(msgspec.json.encode(figure).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
