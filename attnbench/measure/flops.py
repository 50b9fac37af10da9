"""Floating-point operations. In: a workload and the counts of its call. Out: useful, dense, executed FLOPs.

``useful`` counts visible pairs, ``dense`` all pairs, both in closed form. ``executed`` is what was
performed: what the operators do, and in closed form what kernels of the implementation's own do. A
multiply-add is 2 FLOPs.
"""

from attnbench.contract.cost import dense_flops, useful_flops
from attnbench.contract.semantics import SOFTMAX

from .counting import Counts
from .record import Flops
from .workload import Workload


class NothingCountedError(RuntimeError):
    """The counter saw no matmul in a computation that has some: its 0 is no value."""


def counted_flops(workload: Workload, counted: Counts) -> int:
    """Return the FLOPs of the call's operators.

    Raises:
        NothingCountedError: they are 0 although some query sees some key.
    """
    if counted.flops == 0 and workload.problem.pairs() > 0:
        raise NothingCountedError("no operator of this implementation has a FLOP formula")
    return counted.flops


def measure_flops(workload: Workload, counted: Counts, unavailable: dict[str, str]) -> Flops:
    """Return the section; what cannot be had goes to ``unavailable``, with the reason."""
    section = Flops()
    cost = workload.implementation.cost(workload.problem)
    if workload.level == "attention":
        # For softmax the closed form is the problem's own, whatever an implementation states.
        softmax = workload.implementation.semantics.name == SOFTMAX.name
        section.useful = useful_flops(workload.problem) if softmax else cost.flops
        section.dense = dense_flops(workload.problem)
        section.exponentials = cost.exponentials
    else:
        unavailable["flops.useful"] = unavailable["flops.dense"] = "have closed forms for attention alone"
    if not workload.implementation.kernels_for(workload.problem):
        try:
            section.executed = counted_flops(workload, counted)
        except NothingCountedError as reason:
            unavailable["flops.executed"] = str(reason)
    elif cost.executed_flops is None:
        unavailable["flops.executed"] = "the implementation states none for its kernels"
    else:
        # No operator counter sees into a kernel.
        section.executed = counted.flops + workload.num_layers * cost.executed_flops
    return section
