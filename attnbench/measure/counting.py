"""One call, counted. In: a workload, real or fake. Out: bytes and FLOPs of its operators, exact.

Noise-free: the same case gives the same counts on every machine. Fake tensors give the same counts as real
ones, in milliseconds and without memory, but for two things: autograd copies less where an operator changed
a view in place, and tables that a real module makes once and keeps, a fake one makes in every call.
"""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

import torch

from .borders import Inside, borders
from .flop_counter import FlopCounter
from .lifetimes import LifetimeTracker
from .operators import OperandBytes
from .watching import Together
from .workload import Outputs, Workload

CUDA_GRANULARITY = 512
"""CUDA's caching allocator rounds every block up to this many bytes."""


UNSEEN = "a compiled call holds no operators to be seen"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What one call does. Peaks are of all live tensors, ``resident_bytes`` (inputs, weights) included."""

    resident_bytes: int
    prepare_peak_bytes: int
    prepared_bytes: int
    """Live when the call begins: what ``prepare`` left, such as the graph of mode ``bwd``, included."""
    call_peak_bytes: int
    operand_bytes: int
    flops: int
    mixer_flops: int
    """Those of them inside mixers; 0 at level ``attention`` and where a call is compiled."""
    mixer_peak_bytes: int
    """The most that tensors made inside mixers hold at one time, likewise."""
    kernel_flops: int
    """Those of them that operators made of kernels state for themselves."""
    operators: tuple[str, ...]
    """Names of the operators that moved bytes, in the order in which they ran."""

    @property
    def peak_bytes(self) -> int:
        """Bytes that the case needs at most, with what ``prepare`` holds."""
        return max(self.prepare_peak_bytes, self.call_peak_bytes)


def count_call(workload: Workload) -> Counts:
    """Prepare and call once. A module's first call also counts the tables it makes for later ones."""
    return count_outputs(workload)[0]


def count_outputs(workload: Workload, prepared: Callable[[], None] = lambda: None) -> tuple[Counts, Outputs]:
    """The same, with what the call returned; ``prepared`` is told when the call is about to begin."""
    granularity = CUDA_GRANULARITY if workload.case.device == "cuda" else 1
    inside = Inside()
    lifetimes, operands = LifetimeTracker(granularity, inside.__bool__), OperandBytes()
    flops = FlopCounter(inside.__bool__)
    resident_bytes = lifetimes.hold(workload.resident())
    with ExitStack() as stack:
        if workload.module is not None and not workload.compiled:
            stack.enter_context(borders(workload.module, inside.enter, inside.leave))
        # A decoding state is put back from copies, which are the harness's and no part of the case.
        with workload.environment(), lifetimes if workload.state is None else nullcontext():
            workload.prepare()
        prepare_peak_bytes, prepared_bytes = lifetimes.peak_bytes, lifetimes.live_bytes
        lifetimes.reset_peak()
        prepared()
        with workload.environment(), Together(lifetimes, operands, flops):
            outputs = workload.call()
    counts = Counts(
        resident_bytes=resident_bytes,
        prepare_peak_bytes=prepare_peak_bytes,
        prepared_bytes=prepared_bytes,
        call_peak_bytes=lifetimes.peak_bytes,
        operand_bytes=operands.total_bytes,
        flops=flops.flops,
        mixer_flops=flops.flops_inside,
        mixer_peak_bytes=lifetimes.peak_inside_bytes,
        kernel_flops=flops.kernel_flops,
        operators=tuple(operands.operators),
    )
    return counts, outputs


def call_unseen(workload: Workload) -> Outputs:
    """Prepare and call once without any counter; on CUDA wait until it is done."""
    with workload.environment():
        workload.prepare()
        outputs = workload.call()
    if workload.device.type == "cuda":
        torch.cuda.synchronize(workload.device)
    return outputs
