"""Floating-point operations. In: a workload, real or fake. Out: useful, dense, executed FLOPs, exponentials.

``useful`` counts visible pairs, ``dense`` all pairs, both in closed form. ``executed`` is what was performed:
the implementation's own closed form where it has kernels, else PyTorch's counter. A multiply-add is 2 FLOPs.
"""

from typing import Any

import torch
from torch import Size
from torch.utils.flop_counter import FlopCounterMode

from attnbench.contract.cost import dense_flops

from .record import Flops
from .workload import Workload


class NothingCounted(RuntimeError):
    """The counter saw no matmul in a computation that has some: its 0 is no value."""


def _cpu_flash_forward(q: Size, k: Size, v: Size, *_: Any, **__: Any) -> int:
    """``q kᵀ`` and ``p v`` over all pairs, masked ones included, as PyTorch counts other fused kernels."""
    batch, heads, seqlen_q, head_dim = q
    return 2 * batch * heads * seqlen_q * k[2] * (head_dim + v[3])


def _cpu_flash_backward(grad_out: Size, q: Size, k: Size, v: Size, *_: Any, **__: Any) -> int:
    """The scores again, ``dv``, ``dp``, ``dq`` and ``dk``."""
    batch, heads, seqlen_q, head_dim = q
    return 2 * batch * heads * seqlen_q * k[2] * (3 * head_dim + 2 * v[3])


# PyTorch's counter does not know its own fused kernel for the CPU and counts 0 (pytorch/pytorch#195460).
FORMULAS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_flash_forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_flash_backward,
}


def count_flops(workload: Workload) -> int:
    """Run the workload once, real or fake, and count the FLOPs of its matmuls and fused attention operators.

    Raises:
        NothingCounted: the count is 0 although some query sees some key.
    """
    counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
    with workload.environment():
        workload.prepare()
        with counter:
            workload.call()
    total = counter.get_total_flops()
    if total == 0 and workload.problem.pairs() > 0:
        raise NothingCounted("the operator counter knows no operator of this implementation")
    return total


def measure_flops(workload: Workload, unavailable: dict[str, str]) -> Flops:
    """Return the section; what could not be counted goes to ``unavailable``, with the reason."""
    section = Flops()
    if workload.level == "attention":
        cost = workload.implementation.cost(workload.problem)
        section.useful, section.dense = cost.flops, dense_flops(workload.problem)
        section.exponentials = cost.exponentials
        section.executed = cost.executed_flops if workload.implementation.kernels else None
    if section.executed is None:
        try:
            section.executed = count_flops(workload)
        except NothingCounted as reason:
            unavailable["flops.executed"] = str(reason)
    return section
