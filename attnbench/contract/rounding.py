"""The same computation rounded elsewhere. In: a number. Out: an order for each sum, a unit for what is
stored.

Mathematically neither changes anything. Numerically each is another sample of the rounding that a kernel
which takes its sums in an order of its own makes.
"""

import torch
from torch import Tensor


class Rounding:
    """Orders and a unit, drawn from ``number``; 0 is the computation as it is written down."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self._generator = torch.Generator().manual_seed(number)
        # At most 1: no stored value overflows that did not before.
        self.unit = 2.0 ** -float(torch.rand((), generator=self._generator)) if number else 1.0

    def order(self, n: int) -> Tensor:
        """Return the order of the next sum over ``n`` terms."""
        return torch.randperm(n, generator=self._generator) if self.number else torch.arange(n)

    def taken(self, x: Tensor, order: Tensor) -> Tensor:
        """Return x with its last dimension in this order; x itself where nothing is reordered."""
        if not self.number:
            return x
        return x.transpose(-1, -2)[..., order.to(x.device), :].transpose(-1, -2)  # rows copy twice as fast


def stored_scores(q: Tensor, k: Tensor, scale: float, unit: float = 1.0) -> Tensor:
    """Return ``q kᵀ · scale`` ``[…, R, C]`` as stored in the dtype of q, widened to float32 (or better).

    In another unit q is scaled first, and stored so, as half of all plain implementations have it.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    transposed = k.to(wide).transpose(-1, -2)
    if unit == 1:
        return (q.to(wide) @ transposed * scale).to(q.dtype).to(wide)
    scaled = (q.to(wide) * (scale * unit)).to(q.dtype).to(wide)
    return (scaled @ transposed).to(q.dtype).to(wide).div_(unit)
