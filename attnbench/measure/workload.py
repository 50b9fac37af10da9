"""A case made ready to run. In: a case and a seed. Out: tensors, an untimed ``prepare`` and the ``call`` to measure.

Real workloads live on the case's device. Fake ones hold fake CPU tensors of the same shapes: every operator runs,
nothing is computed and nothing is allocated, at any length.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import Implementation
from attnbench.contract.problem import Problem
from attnbench.plan.case import Case

from .inputs import generator_for, make_inputs


class Outputs(NamedTuple):
    """What a call returns: ``out`` (or logits, or a loss), ``lse``, and the gradients of the inputs by name."""

    out: Tensor
    lse: Tensor | None = None
    gradients: Mapping[str, Tensor] | None = None


def _nothing() -> None:
    """Prepare nothing."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One case, ready: enter ``environment()``, then ``prepare()`` before every ``call()``.

    ``call`` is what is measured: the forward pass without a graph (``fwd``, ``decode``), the backward pass on the
    graph that ``prepare`` built (``bwd``), or both (``fwd_bwd``). Where ``repeatable``, ``prepare`` does nothing and
    calls may follow each other.
    """

    case: Case
    problem: Problem
    implementation: Implementation
    inputs: dict[str, Tensor]
    params: Mapping[str, Tensor] | None = None
    module: nn.Module | None = None
    call: Callable[[], Outputs]
    prepare: Callable[[], None] = _nothing
    fake_mode: FakeTensorMode | None = field(default=None, repr=False)

    @property
    def level(self) -> str:
        """``attention``, ``block`` or ``model``."""
        return self.case.level

    @property
    def repeatable(self) -> bool:
        """Whether calls may follow each other without ``prepare``."""
        return self.prepare is _nothing

    @property
    def device(self) -> torch.device:
        """Where the tensors are; the CPU for fake ones."""
        return next(iter(self.inputs.values())).device

    def resident(self) -> list[Tensor]:
        """Return the tensors that exist before the call: inputs, parameters, weights and buffers."""
        weights = [] if self.module is None else [*self.module.parameters(), *self.module.buffers()]
        return [*self.inputs.values(), *(self.params or {}).values(), *weights]

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Gradients on or off as the mode needs them, and the fake-tensor mode of a fake workload."""
        with ExitStack() as stack:
            if self.fake_mode is not None:
                stack.enter_context(self.fake_mode)
            stack.enter_context(torch.set_grad_enabled(self.problem.needs_gradients))
            yield


def build_workload(case: Case, *, seed: int = 0, fake: bool = False) -> Workload:
    """Make the case ready.

    Raises:
        UsageError: an unknown implementation or preset, an impossible shape, or inputs or a mode that the level lacks.
    """
    fake_mode = FakeTensorMode() if fake else None
    with ExitStack() as stack:
        if fake_mode is not None:
            stack.enter_context(fake_mode)
        if case.level == "attention":
            return _attention(case, seed, fake_mode)
        return _module(case, seed, fake_mode)


def _attention(case: Case, seed: int, fake_mode: FakeTensorMode | None) -> Workload:
    if case.inputs == "text":
        raise UsageError("inputs = 'text' needs level 'model': attention alone has no tokens")
    problem = case.problem()
    implementation = get_implementation(case.implementation)
    device = "cpu" if fake_mode else case.device
    inputs = {name: tensor.to(device) for name, tensor in make_inputs(problem, case.inputs, seed=seed).items()}
    params = None
    if implementation.init_params is not None:
        drawn = implementation.init_params(problem, generator_for(seed, "params"))
        params = {name: tensor.to(device) for name, tensor in drawn.items()}
    attention = torch.compile(implementation.attention) if case.compile and not fake_mode else implementation.attention
    leaves = {name: inputs[name].requires_grad_(problem.needs_gradients) for name in ("q", "k", "v")}
    q, k, v = leaves.values()

    def forward() -> Outputs:
        out, lse = attention(q, k, v, problem=problem, params=params)
        return Outputs(out, lse)

    def backward(outputs: Outputs) -> Outputs:
        found = torch.autograd.grad(outputs.out, (q, k, v), inputs["grad_out"])
        return outputs._replace(gradients=dict(zip(leaves, found, strict=True)))

    call, prepare = _by_mode(problem.mode, forward, backward)
    return Workload(
        case=case,
        problem=problem,
        implementation=implementation,
        inputs=inputs,
        params=params,
        call=call,
        prepare=prepare,
        fake_mode=fake_mode,
    )


def _by_mode(
    mode: str, forward: Callable[[], Outputs], backward: Callable[[Outputs], Outputs]
) -> tuple[Callable[[], Outputs], Callable[[], None]]:
    """Return what is measured and what precedes it."""
    if mode == "fwd_bwd":
        return lambda: backward(forward()), _nothing
    if mode != "bwd":
        return forward, _nothing
    graph: list[Outputs] = []

    def build_graph() -> None:
        graph.clear()
        graph.append(forward())

    return lambda: backward(graph.pop()), build_graph


def _module(case: Case, seed: int, fake_mode: FakeTensorMode | None) -> Workload:
    raise NotImplementedError
