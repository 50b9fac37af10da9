"""What operators made of Triton kernels share: where they are registered, how they run, their results."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime import JITFunction

from attnbench.contract.errors import UsageError
from attnbench.contract.launch import Launch

# `torch.library.custom_op` says the same in fewer words, but its first call imports torch._dynamo: 1.4 s.
LIBRARY = torch.library.Library("attnbench", "FRAGMENT")


def define(schema: str) -> None:
    """Define an operator ``attnbench::…`` that follows the rules of PyTorch 2's compiler."""
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def run(launch: Launch, kernel: Any, device: torch.device) -> None:
    """Launch ``kernel`` on ``device``.

    Raises:
        UsageError: the device is the CPU and triton does not interpret.
    """
    if device.type == "cpu" and isinstance(kernel, JITFunction):
        raise UsageError(
            "on the CPU a Triton kernel needs the interpreter: set TRITON_INTERPRET=1 before importing triton"
        )
    guard: AbstractContextManager[Any] = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with guard:
        compiled = launch.run(kernel)
    for seen in _watching:
        seen.append(compiled)


_watching: list[list[Any]] = []


@contextmanager
def launched() -> Iterator[list[Any]]:
    """Collect what Triton compiled of every kernel that is launched meanwhile (``None`` if interpreted)."""
    seen: list[Any] = []
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.pop()


def result(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype, unwritten: float) -> Tensor:
    """Allocate a contiguous result that a kernel fills.

    The interpreter may run a sample of the programs: there, what none of them writes holds ``unwritten``.
    """
    if like.device.type == "cpu":
        return like.new_full(shape, unwritten, dtype=dtype)
    return like.new_empty(shape, dtype=dtype)


@lru_cache(maxsize=256)
def bounds(query_starts: tuple[int, ...], key_limits: tuple[int, ...], device: torch.device) -> Tensor:
    """First query position and number of keys, ``[B, 2]`` int32; kept, so that calls copy nothing."""
    return torch.tensor([query_starts, key_limits], dtype=torch.int32).t().contiguous().to(device)
