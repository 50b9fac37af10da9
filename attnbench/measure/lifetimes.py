"""Peak memory from tensor lifetimes. In: tensor operations, real or fake. Out: live and peak bytes, exact.

Every operator's outputs come past a dispatch mode, which holds their storages by weak references: a storage
counts from the operator that made it until the last tensor on it dies. What a kernel allocates for itself
inside one operator is invisible here.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .watching import OperatorWatch, never


class LifetimeTracker(OperatorWatch):
    """Counts the bytes of live storages while it is active; under fake tensors, enter it inside their mode.

    ``granularity`` rounds each storage up, as an allocator does (512 bytes on CUDA). ``peak_inside_bytes`` is
    the peak, at its own moment, of what was made while ``inside`` was true.
    """

    def __init__(self, granularity: int = 1, inside: Callable[[], bool] = never) -> None:
        """Start with nothing live."""
        super().__init__()
        self.granularity = granularity
        self.inside = inside
        self.live_bytes = self.live_inside_bytes = 0
        self.peak_bytes = self.peak_inside_bytes = 0
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int, bool]] = {}

    def hold(self, tensors: Iterable[Tensor]) -> int:
        """Count tensors that exist already (inputs, weights); return the live bytes with them."""
        for tensor in tensors:
            self._see(tensor.untyped_storage())
        return self.live_bytes

    def reset_peak(self) -> None:
        """Let the peak start from what is live now."""
        self.peak_bytes, self.peak_inside_bytes = self.live_bytes, self.live_inside_bytes

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count the storages of the operator's outputs, and of what it may have resized."""
        seen = tree_leaves(out)
        if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable:
            seen += tree_leaves((args, kwargs))
        for tensor in seen:
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                self._see(tensor.untyped_storage())

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        size = -(-storage.nbytes() // self.granularity) * self.granularity
        known = self._live.get(key)
        if known is None:
            made_inside = self.inside()
            self._live[key] = (weakref.ref(storage, self._on_death(key)), size, made_inside)
            self._add(size, made_inside)
        elif known[1] != size:
            self._live[key] = (known[0], size, known[2])
            self._add(size - known[1], known[2])
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.peak_inside_bytes = max(self.peak_inside_bytes, self.live_inside_bytes)

    def _add(self, size: int, made_inside: bool) -> None:
        self.live_bytes += size
        self.live_inside_bytes += size if made_inside else 0

    def _on_death(self, key: int) -> Callable[[weakref.ref[torch.UntypedStorage]], None]:
        # The callback outlives this frame inside the tracker's own dict: a strong reference would be a cycle.
        tracker = weakref.ref(self)

        def forget(_: weakref.ref[torch.UntypedStorage]) -> None:
            alive = tracker()
            if alive is not None:
                _, size, made_inside = alive._live.pop(key)
                alive._add(-size, made_inside)

        return forget
