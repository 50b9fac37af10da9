"""Buffers that operators overwrite again and again, so that they stay in cache. In: a name, a shape. Out: a tensor."""

from math import prod

import torch
from torch import Tensor


class Scratch:
    """Uninitialised tensors by name: one buffer a name, grown when a larger shape is asked for."""

    def __init__(self, like: Tensor, dtype: torch.dtype | None = None) -> None:
        """Keep all buffers on the device of ``like``, and in its dtype unless another is given."""
        self.device = like.device
        self.dtype = dtype or like.dtype
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Return a contiguous tensor; it shares its memory with every earlier one of that name."""
        size = prod(shape)
        buffer = self._buffers.pop(name, None)
        if buffer is None or buffer.numel() < size:
            del buffer  # before the larger one exists
            buffer = torch.empty(size, dtype=self.dtype, device=self.device)
        self._buffers[name] = buffer
        return buffer[:size].view(shape)
