"""A mask with global tokens: a sliding window, and first positions that see all and are seen by all."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnbench.contract.masks import Mask


@dataclass(frozen=True)
class GlobalWindow(Mask):
    """``|q_pos - k_pos| < window_size``, or one of the two is below ``num_global`` (arXiv 2004.05150)."""

    window_size: int
    num_global: int
    name: ClassVar[str] = "global-window"

    def visible(self, b: Any, h: Any, q_pos: Any, k_pos: Any) -> Any:
        """Say elementwise whether the query sees the key."""
        near = abs(q_pos - k_pos) < self.window_size
        return near | (q_pos < self.num_global) | (k_pos < self.num_global)
