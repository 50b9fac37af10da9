"""What a case is once it can run: tensors, an untimed ``prepare``, a ``call`` to measure.

Real workloads live on the case's device. Fake ones hold fake CPU tensors of the same shapes: every operator
runs, nothing is computed and nothing is allocated, at any length.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.implementation import Implementation
from attnbench.contract.problem import Problem
from attnbench.plan.case import Case

from .attentions import Attention
from .timing import Copies
from .timing import nothing as nothing


class Outputs(NamedTuple):
    """What a call returns: ``out`` (at level ``model`` logits, or the loss), ``lse``, gradients by name."""

    out: Tensor
    lse: Tensor | None = None
    gradients: Mapping[str, Tensor] | None = None


class StandInMode(FakeTensorMode):
    """Fake CPU tensors in place of those of a device; problems name the device, so paths are chosen by it.

    Fake CUDA tensors with gradients would abort a PyTorch that is built without CUDA.
    """

    def __init__(self, stands_for: str) -> None:
        """Stand for tensors on ``cpu`` or ``cuda``."""
        super().__init__()
        self.stands_for = stands_for


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One case, ready: within ``environment()``, ``prepare()`` before every ``call()``.

    ``call`` is what is measured: the forward pass without a graph (``fwd``), the backward pass on the graph
    that ``prepare`` built (``bwd``), both (``fwd_bwd``), or one step from the decoding state that ``prepare``
    puts back (``decode``). Gradients are returned, never accumulated.
    """

    case: Case
    seed: int
    attentions: tuple[Attention, ...]
    inputs: dict[str, Tensor]
    """What the truth is made from; the call must leave it alone."""
    params: Mapping[str, Tensor] | None = None
    module: nn.Module | None = None
    state: Any = None
    """The decoding state; ``inputs`` beside it are those of the call, at level ``attention`` all keys too."""
    tables: tuple[Tensor, ...] = ()
    """Of positions, made beside the state."""
    call: Callable[[], Outputs]
    prepare: Callable[[], None] = nothing
    arguments: tuple[Tensor, ...] | None = None
    """What the call reads, where that is not ``inputs``."""
    copies: Copies | None = None
    """Of an attention's forward call, which can be captured."""
    fake_mode: FakeTensorMode | None = None

    @property
    def implementation(self) -> Implementation:
        """The case's own implementation."""
        return self.attentions[0].implementation

    @property
    def problem(self) -> Problem:
        """The attention that it computes, of each layer over its own sequence."""
        return self.attentions[0].problem

    @property
    def level(self) -> str:
        """``attention``, ``block`` or ``model``."""
        return self.case.level

    @property
    def repeatable(self) -> bool:
        """Whether calls may follow each other without ``prepare``."""
        return self.prepare is nothing

    @property
    def interpreted(self) -> bool:
        """Whether any of it runs under an interpreter, where no time means anything."""
        return any(one.implementation.execution(one.asked) == "interpreted" for one in self.attentions)

    @property
    def compiled(self) -> bool:
        """Whether the call goes through ``torch.compile``; on fake tensors it never does."""
        return self.case.compile and self.fake_mode is None

    @property
    def opaque(self) -> bool:
        """Whether the call, or an attention in it, goes through PyTorch's compiler.

        It stands aside while operators are watched, so that what they count would be another call.
        """
        return self.compiled or any(one.implementation.compiled for one in self.attentions)

    @property
    def device(self) -> torch.device:
        """Where the tensors are; the CPU for fake ones."""
        return next(iter(self.inputs.values())).device

    def resident(self) -> list[Tensor]:
        """Return the tensors that exist before the call: its arguments, parameters, weights and state."""
        weights = [] if self.module is None else [*self.module.parameters(), *self.module.buffers()]
        arguments = self.inputs.values() if self.arguments is None else self.arguments
        held = [*tensors_of(self.state), *self.tables]
        return [*arguments, *(self.params or {}).values(), *weights, *held]

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Gradients on or off as the mode needs them, and the fake-tensor mode of a fake workload."""
        with ExitStack() as stack:
            if self.fake_mode is not None:
                stack.enter_context(self.fake_mode)
            stack.enter_context(torch.set_grad_enabled(self.problem.needs_gradients))
            yield


def tensors_of(state: Any) -> list[Tensor]:
    """Return the tensors of a decoding state, through lists, tuples, tables and plain objects."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, Mapping):
        parts = list(state.values())
    elif isinstance(state, list | tuple):
        parts = list(state)
    else:
        parts = list(getattr(state, "__dict__", {}).values())
    return [tensor for part in parts for tensor in tensors_of(part)]


def by_mode(
    mode: str, forward: Callable[[], Outputs], leaves: dict[str, Tensor], grad_out: Tensor | None
) -> tuple[Callable[[], Outputs], Callable[[], None]]:
    """Return what is measured and what precedes it; without ``grad_out``, ``forward`` gives a scalar loss."""

    def backward(outputs: Outputs) -> Outputs:
        found = torch.autograd.grad(outputs.out, tuple(leaves.values()), grad_out, allow_unused=True)
        gradients = {name: x for name, x in zip(leaves, found, strict=True) if x is not None}
        return outputs._replace(gradients=gradients)

    if mode == "fwd_bwd":
        return lambda: backward(forward()), nothing
    if mode != "bwd":
        return forward, nothing
    graph: list[Outputs] = []

    def build_graph() -> None:
        graph[:] = [forward()]

    return lambda: backward(graph.pop()), build_graph


def place_of(case: Case, fake_mode: FakeTensorMode | None) -> str:
    """Return the device of the tensors."""
    return case.device if fake_mode is None else "cpu"
