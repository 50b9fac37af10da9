"""Operand bytes of operators. In: tensor operations, real or fake. Out: bytes read and written, what ran.

Every operator reads each of its tensor operands once and writes each of its results once: what a computation
costs if nothing stays in a cache between two operators and nothing is fetched twice within one. Views and
allocations move nothing. A kernel that is registered with torch is one operator, like any other.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .watching import OperatorWatch

GATHERS = frozenset({"aten.embedding", "aten.gather", "aten.index", "aten.index_select"})
"""Read of their first operand only what they return."""
OVERWRITERS = frozenset(
    {"aten.copy_", "aten.fill_", "aten.zero_", "aten.normal_", "aten.uniform_", "aten.bernoulli_"}
)
"""Write ``self`` without reading it."""
SCALED_ADDS = frozenset({"aten.addmm", "aten.baddbmm", "aten.addbmm", "aten.addmv", "aten.addr"})
"""Ignore ``self`` when ``beta`` is 0."""


def touched_bytes(tensor: Tensor) -> int:
    """Return the bytes that reading all of the tensor touches.

    Broadcast dimensions count once, overlapping windows no more than the span they cover.
    """
    if tensor.numel() == 0:
        return 0
    if tensor.layout != torch.strided:
        return tensor.numel() * tensor.element_size()
    moving = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    span = 1 + sum((size - 1) * stride for size, stride in moving)
    return min(prod(size for size, _ in moving), span) * tensor.element_size()


def _tensors(tree: Any) -> list[Tensor]:
    return list({id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


class OperandBytes(OperatorWatch):
    """Adds up ``read_bytes`` and ``written_bytes`` while active.

    ``operators`` names those that moved anything, in the order in which they ran.
    """

    def __init__(self) -> None:
        """Start at zero."""
        super().__init__()
        self.read_bytes = 0
        self.written_bytes = 0
        self.operators: list[str] = []

    @property
    def total_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count the operator's operands."""
        if not isinstance(func, torch._ops.OpOverload):
            self._count(func.name(), _tensors((args, kwargs)), [], out)
        elif not func.is_view:
            read, mutated = _operands(func, args, kwargs)
            self._count(str(func._overloadpacket), read, mutated, out)

    def _count(self, name: str, read: list[Tensor], mutated: list[Tensor], out: Any) -> None:
        held = {_storage(tensor) for tensor in (*read, *mutated)}
        fresh = [tensor for tensor in _tensors(out) if _storage(tensor) not in held]
        written = sum(touched_bytes(tensor) for tensor in (*fresh, *mutated))
        if not (fresh or mutated) or name.startswith(("aten.empty", "aten.new_empty")):
            return
        reads = [touched_bytes(tensor) for tensor in read]
        if name in GATHERS:
            reads[0] = min(reads[0], written)
        self.read_bytes += sum(reads)
        self.written_bytes += written
        self.operators.append(name)


def _operands(
    func: torch._ops.OpOverload[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Split an operator's tensors into those it reads and those it changes; an update in place is both."""
    name = str(func._overloadpacket)
    read: dict[int, Tensor] = {}
    mutated: dict[int, Tensor] = {}
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        tensors = _tensors(value)
        if argument.alias_info is not None and argument.alias_info.is_write:
            mutated.update((id(tensor), tensor) for tensor in tensors)
            if name in OVERWRITERS or argument.name.startswith("out") or argument.is_out:
                continue
        if name in SCALED_ADDS and argument.name == "self" and kwargs.get("beta", 1) == 0:
            continue
        read.update((id(tensor), tensor) for tensor in tensors)
    return list(read.values()), list(mutated.values())
