"""Buffers that operators write into again and again, so that they stay in cache. In: a name and a shape. Out: a tensor to overwrite."""

from math import prod

import torch
from torch import Tensor


class Scratch:
    """Uninitialised tensors by name; one buffer a name, grown when a larger shape is asked for."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        """Keep all buffers on the device of ``like``."""
        self._device = like.device
        self.dtype = dtype
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Return a contiguous tensor; it shares its memory with every earlier one of that name."""
        size = prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            self._buffers.pop(name, None)
            buffer = self._buffers[name] = torch.empty(size, dtype=self.dtype, device=self._device)
        return buffer[:size].view(shape)
