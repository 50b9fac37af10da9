"""FLOPs of operators. In: tensor operations, real or fake. Out: their sum, a multiply-add being two.

The formulas are PyTorch's own (matmuls, convolutions, fused attention over all pairs, masked ones
included), with those that it lacks. Registering one for an operator of one's own
(``register_flop_formula``) is enough to be counted.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from .watching import OperatorWatch, never


def _cpu_flash_forward(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    """``q kᵀ`` and ``p v`` over all pairs."""
    batch, heads, seqlen_q, head_dim = q.shape
    return 2 * batch * heads * seqlen_q * k.shape[2] * (head_dim + v.shape[3])


def _cpu_flash_backward(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    """The scores again, then ``dv``, ``dp``, ``dq`` and ``dk``."""
    batch, heads, seqlen_q, head_dim = q.shape
    return 2 * batch * heads * seqlen_q * k.shape[2] * (3 * head_dim + 2 * v.shape[3])


# PyTorch's counter does not know its own fused attention for the CPU and counts 0 (pytorch/pytorch#195460).
_MISSING: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_flash_forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_flash_backward,
}


class FlopCounter(OperatorWatch):
    """Adds up ``flops`` while active: in ``flops_inside`` those of them while ``inside`` was true, in
    ``kernel_flops`` those of operators that are not PyTorch's own.

    Unlike ``torch.utils.flop_counter.FlopCounterMode`` it keeps no account by module, so
    ``torch.autograd.grad`` may ask for the gradient of a module's input, and higher-order operators pass
    (uncounted).
    """

    def __init__(self, inside: Callable[[], bool] = never) -> None:
        """Start at zero."""
        super().__init__()
        self.inside = inside
        self.flops = self.flops_inside = self.kernel_flops = 0

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count the operator if there is a formula for it."""
        packet = getattr(func, "_overloadpacket", None)
        formula = _MISSING.get(packet) or flop_registry.get(packet)
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=out)
            self.flops += flops
            self.flops_inside += flops if self.inside() else 0
            self.kernel_flops += flops if func.namespace != "aten" else 0
