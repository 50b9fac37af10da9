"""Buffers that operators overwrite, kept in cache. In: a name and a shape. Out: a tensor."""

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
        self._views: dict[str, dict[tuple[int, ...], Tensor]] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Return a contiguous tensor; it shares its memory with the others of that name."""
        views = self._views.setdefault(name, {})
        if shape not in views:
            size = prod(shape)
            if not self.holds(name, *shape):
                self._buffers.pop(name, None)  # before the larger one exists
                views.clear()
                self._buffers[name] = torch.empty(size, dtype=self.dtype, device=self.device)
            views[shape] = self._buffers[name][:size].view(shape)
        return views[shape]

    def holds(self, name: str, *shape: int) -> bool:
        """Whether the buffer of that name is large enough."""
        return name in self._buffers and self._buffers[name].numel() >= prod(shape)
