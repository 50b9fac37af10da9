"""Seeing operators as they run. In: tensor operations, real or fake. Out: a call of ``saw`` for each one."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def never() -> bool:
    """Say no: nothing lies inside anything that is watched."""
    return False


class OperatorWatch(TorchDispatchMode):
    """Base of what counts operators while it is active; under fake tensors, enter it inside their mode.

    Composite operators are seen by their parts, higher-order ones and kernels registered with torch as one.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        """Be a dispatch mode."""
        super().__init__()  # type: ignore[no-untyped-call]

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Take note of one operator that has run: an ``OpOverload`` or a ``HigherOrderOperator``."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, then take note of it."""
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # a question, and most of the calls under fake tensors
            return func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload):
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        self.saw(func, args, kwargs, out)
        return out


class Together(OperatorWatch):
    """Several watches behind one mode, which is cheaper than as many modes."""

    def __init__(self, *watches: OperatorWatch) -> None:
        """Watch with all of them."""
        super().__init__()
        self.watches = watches

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Tell everyone."""
        for watch in self.watches:
            watch.saw(func, args, kwargs, out)
