"""Floating-point operations. In: a workload and the counts of its call. Out: useful, dense, executed FLOPs.

``useful`` counts visible pairs, ``dense`` all pairs, both in closed form. ``executed`` is what was
performed: what the operators do, and in closed form what kernels of the implementation's own do. A
multiply-add is 2 FLOPs.
"""

from attnbench.contract.cost import dense_flops, useful_flops
from attnbench.contract.semantics import SOFTMAX

from .attentions import Attention
from .counting import UNSEEN, Counts
from .record import Flops
from .workload import Workload

ATTENTION_ALONE = "has a closed form for attention alone"
NOT_STATED = "the implementation states no closed form"
CLOSED_FORMS = ("flops.useful", "flops.dense", "flops.exponentials")


class NothingCountedError(RuntimeError):
    """What was counted is not what was performed: nothing was seen, or kernels that state no FLOPs ran."""


def counted_flops(workload: Workload, counted: Counts) -> int:
    """Return the FLOPs of the call's operators.

    Raises:
        NothingCountedError: they are 0 although some query sees some key.
    """
    if counted.flops == 0 and workload.problem.pairs() > 0:
        raise NothingCountedError("no operator of this implementation has a FLOP formula")
    return counted.flops


def executed_flops(workload: Workload, counted: Counts) -> int:
    """Return the FLOPs of a call: those of its operators, and in closed form those of kernels of its own
    that are no operators with a formula.

    Raises:
        NothingCountedError: neither the counter nor the implementation says.
    """
    with_kernels = [one for one in workload.attentions if one.implementation.kernels_for(one.asked)]
    if counted.kernel_flops or not with_kernels:
        return counted_flops(workload, counted)
    # No operator counter sees into a kernel that states nothing.
    return counted.flops + sum(one.layers * _stated(workload, one) for one in with_kernels)


def _stated(workload: Workload, attention: Attention) -> int:
    """Return the FLOPs that the implementation states; a checkpointed layer goes forward once more."""
    again = attention._replace(problem=attention.problem.replace(mode="fwd"))
    attentions = [attention, *([again] if workload.case.checkpoint else [])]
    stated = [each.cost.executed_flops for each in attentions]
    known = [flops for flops in stated if flops is not None]
    if len(known) < len(stated):
        raise NothingCountedError("the implementation states none for its kernels")
    return sum(known)


def measure_flops(workload: Workload, counted: Counts | None, unavailable: dict[str, str]) -> Flops:
    """Return the section; what cannot be had goes to ``unavailable``, with the reason."""
    section = Flops()
    cost = workload.attentions[0].cost
    if workload.level == "attention":
        # For softmax the closed form is the problem's own, whatever an implementation states.
        softmax = workload.implementation.semantics.name == SOFTMAX.name
        section.useful = useful_flops(workload.problem) if softmax else cost.flops
        section.dense = dense_flops(workload.problem)
        section.exponentials = cost.exponentials
        if cost.exponentials is None:
            unavailable["flops.exponentials"] = NOT_STATED
    else:
        unavailable |= dict.fromkeys(CLOSED_FORMS, ATTENTION_ALONE)
    if counted is None:
        unavailable["flops.executed"] = UNSEEN
        return section
    try:
        section.executed = executed_flops(workload, counted)
    except NothingCountedError as reason:
        unavailable["flops.executed"] = str(reason)
    return section
