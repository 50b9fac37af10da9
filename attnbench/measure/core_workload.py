"""A case of level ``attention`` made ready: the core on q, k and v. In: a case, a seed. Out: a workload."""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.implementation import Implementation
from attnbench.contract.problem import Problem
from attnbench.contract.state import append, extend, keep, new_state
from attnbench.model.weights import generator_for
from attnbench.plan.case import Case

from .attentions import attentions_of
from .inputs import make_inputs
from .prepared import Outputs, Workload, by_mode, place_of
from .timing import Copies


def core_workload(case: Case, seed: int, fake_mode: FakeTensorMode | None) -> Workload:
    """Make the case ready."""
    attentions = attentions_of(case)
    core, problem = attentions[0].implementation, attentions[0].problem
    place, dtype = place_of(case, fake_mode), getattr(torch, case.dtype)
    form: dict[str, Any] = {"case": case, "seed": seed, "attentions": attentions, "fake_mode": fake_mode}
    params = None
    with fake_mode or ExitStack():
        inputs = {name: x.to(place) for name, x in make_inputs(problem, case.inputs, seed=seed).items()}
        if core.init_params is not None:
            drawn = core.init_params(problem, generator_for(seed, "params"))
            params = {name: x.to(place, dtype) for name, x in drawn.items()}
        form |= {"inputs": inputs, "params": params}
        if case.compile and fake_mode is None and not core.compiled:
            core = dataclasses.replace(core, attention=torch.compile(core.attention))
        if case.mode == "decode":
            step = CoreStep(core, problem, inputs, params, place)
            return Workload(
                **form, state=step.state, call=step, prepare=step.prepare, arguments=step.arguments
            )
    leaves = {name: inputs[name].requires_grad_(problem.needs_gradients) for name in ("q", "k", "v")}
    q, k, v = leaves.values()

    def forward() -> Outputs:
        return _checked(core.attention(q, k, v, problem=problem, params=params))

    call, prepare = by_mode(case.mode, forward, leaves, inputs.get("grad_out"))
    copies = _copies(core, problem, leaves, params) if case.mode == "fwd" else None
    return Workload(**form, call=call, prepare=prepare, copies=copies)


def _copies(
    core: Implementation, problem: Problem, tensors: dict[str, Tensor], params: Mapping[str, Tensor] | None
) -> Copies:
    drawn = params or {}

    def one() -> Callable[[], Outputs]:
        mine = {name: x.clone() for name, x in tensors.items()}
        parts = None if params is None else {name: x.clone() for name, x in drawn.items()}
        return lambda: _checked(core.attention(**mine, problem=problem, params=parts))

    bytes_each = sum(x.numel() * x.element_size() for x in (*tensors.values(), *drawn.values()))
    return Copies(bytes_each=bytes_each, make=lambda count: [one() for _ in range(count)])


def _checked(result: Any) -> Outputs:
    if not isinstance(result, tuple) or len(result) != 2:
        kind = type(result).__name__
        raise TypeError(f"attention() must return AttentionOutput(out, lse), not {kind}")
    return Outputs(*result)


class CoreStep:
    """The last ``seqlen_q`` tokens of every row, attending from a state that holds those before them.

    The state is filled without attending; ``prepare`` puts it back before each call.
    """

    def __init__(
        self,
        core: Implementation,
        problem: Problem,
        inputs: Mapping[str, Tensor],
        params: Mapping[str, Tensor] | None,
        place: str,
    ) -> None:
        """Fill the state with all but the last tokens of ``k`` and ``v``."""
        p, new = problem, problem.seqlen_q
        contexts = tuple(n - new for n in p.key_limits)
        held = p.seqlen_k - new
        # The state is where the tensors are, which under fake ones is not the device they stand for.
        placed = p.replace(device=place)
        self.core, self.params = core, params
        self.step = p.replace(seqlen_k=new, key_lengths=None, query_start=None)
        before = placed.replace(
            mode="fwd", seqlen_q=held, seqlen_k=held, key_lengths=contexts, query_start=None
        )
        keys, values = inputs["k"], inputs["v"]
        self.arguments = (inputs["q"], _last(keys, contexts, new), _last(values, contexts, new))
        empty = new_state(core, placed, p.seqlen_k)
        self.state = append(
            core, empty, keys[:, :, :held], values[:, :, :held], problem=before, params=params
        )
        self._restore = keep(self.state)

    def prepare(self) -> None:
        """Put the state back as it was filled."""
        self.state = self._restore()

    def __call__(self) -> Outputs:
        """Attend with the new tokens."""
        output, self.state = extend(
            self.core, self.state, *self.arguments, problem=self.step, params=self.params
        )
        return _checked(output)


def _last(x: Tensor, starts: tuple[int, ...], count: int) -> Tensor:
    """Copy ``count`` positions of every row, from ``starts[b]`` on: ``[B, G, count, …]``."""
    rows = [x[b, :, start : start + count] for b, start in enumerate(starts)]
    return torch.stack(rows) if rows else x[:, :, :count].clone()
