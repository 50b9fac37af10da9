"""Derivatives that there are not, second ones and in forward mode. Tensors in, the same or an error out."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name
        return tuple(gradient.clone() for gradient in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(f"{ctx.name} has no second derivative")


def once(name: str, gradients: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return ``gradients``; to differentiate them raises, where a graph is made for that (``create_graph``).

    ``torch.autograd.function.once_differentiable`` takes them for constants where the upstream gradient is
    one, as that of a sum is: a gradient penalty would be wrong without a word.
    """
    if not torch.is_grad_enabled():
        return gradients
    apply: Callable[..., tuple[Tensor, ...]] = _Once.apply
    return apply(name, len(gradients), *gradients, *inputs)


def refuse_forward_mode(name: str, *tensors: Tensor) -> None:
    """Raise where a tensor carries a tangent: an operator would drop it, and its derivative be 0."""
    if torch.compiler.is_compiling():
        return
    if any(unpack_dual(x).tangent is not None for x in tensors):
        raise RuntimeError(f"{name} has no derivative in forward mode")
