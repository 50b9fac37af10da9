"""Predicted DRAM bytes of a traced call. In: a trace and a target. Out: bytes, and which cache was assumed.

A record of a machine without a GPU still has to name some cache: that of the reference target.
"""

from attnbench.contract.errors import UsageError
from attnbench.device.targets import find_target

from .kernel_trace import KernelTrace
from .l2_model import dram_curve

REFERENCE_TARGET = "sm_90"


def predict_dram(trace: KernelTrace, target: str = REFERENCE_TARGET) -> tuple[int, str]:
    """Return what would be read from and written to the memory behind the L2 cache of a target's device, and
    in words what was assumed: one program on each multiprocessor.

    Raises:
        UsageError: the target is unknown, or has not one L2 cache.
    """
    cache = find_target(target).l2
    if cache is None:
        raise UsageError(f"{target} has more than one L2 cache; the model is of one")
    curve = dram_curve(trace.accesses(cache.multiprocessors))
    words = f"l2-model: {cache.device}, {cache.bytes >> 20} MiB, {cache.multiprocessors} programs at a time"
    return curve.dram_bytes(cache.bytes), words
