"""A case made ready to run. In: a case, a seed. Out: tensors, an untimed ``prepare``, a ``call`` to measure.

Real workloads live on the case's device. Fake ones hold fake CPU tensors of the same shapes: every operator
runs, nothing is computed and nothing is allocated, at any length.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import Implementation
from attnbench.contract.masks import mask_from
from attnbench.contract.problem import Problem
from attnbench.model.builder import build_block, build_model
from attnbench.model.presets import load_preset
from attnbench.model.text import stdlib_tokens
from attnbench.model.transformer import Transformer
from attnbench.model.weights import generator_for
from attnbench.plan.case import Case

from .inputs import draw, make_inputs


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


def _nothing() -> None:
    """Prepare nothing."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One case, ready: within ``environment()``, ``prepare()`` before every ``call()``.

    ``call`` is what is measured: the forward pass without a graph (``fwd``, ``decode``), the backward pass
    on the graph that ``prepare`` built (``bwd``), or both (``fwd_bwd``). Gradients are returned, never
    accumulated.
    """

    case: Case
    problem: Problem
    implementation: Implementation
    inputs: dict[str, Tensor]
    params: Mapping[str, Tensor] | None = None
    module: nn.Module | None = None
    call: Callable[[], Outputs]
    prepare: Callable[[], None] = _nothing
    fake_mode: FakeTensorMode | None = None

    @property
    def level(self) -> str:
        """``attention``, ``block`` or ``model``."""
        return self.case.level

    @property
    def repeatable(self) -> bool:
        """Whether calls may follow each other without ``prepare``."""
        return self.prepare is _nothing

    @property
    def compiled(self) -> bool:
        """Whether the call goes through ``torch.compile``; on fake tensors it never does."""
        return self.case.compile and self.fake_mode is None

    @property
    def device(self) -> torch.device:
        """Where the tensors are; the CPU for fake ones."""
        return next(iter(self.inputs.values())).device

    @property
    def num_layers(self) -> int:
        """How many attentions of this shape one call computes."""
        return self.module.config.num_layers if isinstance(self.module, Transformer) else 1

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
        UsageError: an unknown implementation or preset, an impossible shape, or a key that the level lacks.
    """
    reasons = _refused_keys(case)
    if reasons:
        raise UsageError(f"level {case.level!r} has no {', no '.join(reasons)}")
    fake_mode = StandInMode(case.device) if fake else None
    return {"attention": _attention, "block": _block, "model": _model}[case.level](case, seed, fake_mode)


def _refused_keys(case: Case) -> list[str]:
    tokens = ["inputs = 'text'"] if case.inputs == "text" and case.level != "model" else []
    if case.level == "attention":
        return tokens
    given = {
        "mode = 'decode'": case.mode == "decode",
        "scale": case.scale is not None,
        "query_start": case.query_start is not None,
        "seqlen_q other than seqlen_k": case.seqlen_q != case.seqlen_k,
    }
    return tokens + [name for name, is_given in given.items() if is_given]


def _attention(case: Case, seed: int, fake_mode: FakeTensorMode | None) -> Workload:
    problem = case.problem()
    implementation = get_implementation(case.implementation)
    place, dtype = _place(case, fake_mode), getattr(torch, case.dtype)
    params = None
    with fake_mode or ExitStack():
        inputs = {name: x.to(place) for name, x in make_inputs(problem, case.inputs, seed=seed).items()}
        if implementation.init_params is not None:
            drawn = implementation.init_params(problem, generator_for(seed, "params"))
            params = {name: x.to(place, dtype) for name, x in drawn.items()}
    compiled = case.compile and fake_mode is None
    attention = torch.compile(implementation.attention) if compiled else implementation.attention
    leaves = {name: inputs[name].requires_grad_(problem.needs_gradients) for name in ("q", "k", "v")}
    q, k, v = leaves.values()

    def forward() -> Outputs:
        result = attention(q, k, v, problem=problem, params=params)
        if not isinstance(result, tuple) or len(result) != 2:
            kind = type(result).__name__
            raise TypeError(f"attention() must return AttentionOutput(out, lse), not {kind}")
        return Outputs(*result)

    call, prepare = _by_mode(case.mode, forward, leaves, inputs.get("grad_out"))
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


def _block(case: Case, seed: int, fake_mode: FakeTensorMode | None) -> Workload:
    place = _place(case, fake_mode)
    with fake_mode or ExitStack():
        module = build_block(case.preset or "", **_form(case, seed, place))
        shape = (case.batch, case.seqlen_q, load_preset(case.preset or "").dim)
        names = ("x", "grad_out") if case.problem().needs_gradients else ("x",)
        inputs = {
            name: draw(case.inputs, shape, case.dtype, seed=seed, name=name).to(place) for name in names
        }
    return _of_block(case, module, inputs, fake_mode)


def _of_block(
    case: Case, module: nn.Module, inputs: dict[str, Tensor], fake_mode: FakeTensorMode | None
) -> Workload:
    x = inputs["x"]
    run = _compiled(module, case, fake_mode)
    return _of_module(
        case,
        module,
        inputs,
        fake_mode,
        forward=lambda: Outputs(run(x, case.key_lengths)[0]),
        leaves={"x": x},
        grad_out=inputs.get("grad_out"),
    )


def _model(case: Case, seed: int, fake_mode: FakeTensorMode | None) -> Workload:
    place = _place(case, fake_mode)
    with fake_mode or ExitStack():
        module = build_model(case.preset or "", **_form(case, seed, place))
    tokens = _tokens(case, seed, module.config.vocab_size)
    tokens = tokens.to(place) if fake_mode is None else fake_mode.from_tensor(tokens)
    return _of_model(case, module, {"tokens": tokens}, fake_mode)


def _of_model(
    case: Case, module: nn.Module, inputs: dict[str, Tensor], fake_mode: FakeTensorMode | None
) -> Workload:
    tokens = inputs["tokens"]
    run = _compiled(module, case, fake_mode)

    def logits() -> Outputs:
        return Outputs(run(tokens, case.key_lengths))

    def loss() -> Outputs:
        predicted = run(tokens, case.key_lengths)[:, :-1].flatten(0, 1)
        return Outputs(F.cross_entropy(predicted, tokens[:, 1:].flatten()))

    forward = loss if case.problem().needs_gradients else logits
    return _of_module(case, module, inputs, fake_mode, forward=forward, leaves={}, grad_out=None)


def with_module(workload: Workload, module: nn.Module) -> Workload:
    """Return the same work on another module of the same form, on inputs of its dtype, never compiled.

    Raises:
        UsageError: the workload has no module (level ``attention``).
    """
    if workload.module is None:
        raise UsageError("level 'attention' has no module")
    dtype = next(module.parameters()).dtype
    inputs = {
        name: x.detach().to(dtype, copy=True) if x.is_floating_point() else x
        for name, x in workload.inputs.items()
    }
    plain = msgspec.structs.replace(workload.case, compile=False)
    return {"block": _of_block, "model": _of_model}[workload.level](plain, module, inputs, None)


def _of_module(
    case: Case,
    module: nn.Module,
    inputs: dict[str, Tensor],
    fake_mode: FakeTensorMode | None,
    *,
    forward: Callable[[], Outputs],
    leaves: dict[str, Tensor],
    grad_out: Tensor | None,
) -> Workload:
    """Finish a workload whose weights, beside ``leaves``, get gradients."""
    problem = case.problem()
    module.requires_grad_(problem.needs_gradients)
    for leaf in leaves.values():
        leaf.requires_grad_(problem.needs_gradients)
    call, prepare = _by_mode(case.mode, forward, {**leaves, **dict(module.named_parameters())}, grad_out)
    return Workload(
        case=case,
        problem=problem,
        implementation=get_implementation(case.implementation),
        inputs=inputs,
        module=module,
        call=call,
        prepare=prepare,
        fake_mode=fake_mode,
    )


def _by_mode(
    mode: str, forward: Callable[[], Outputs], leaves: dict[str, Tensor], grad_out: Tensor | None
) -> tuple[Callable[[], Outputs], Callable[[], None]]:
    """Return what is measured and what precedes it; without ``grad_out``, ``forward`` gives a scalar loss."""

    def backward(outputs: Outputs) -> Outputs:
        found = torch.autograd.grad(outputs.out, tuple(leaves.values()), grad_out, allow_unused=True)
        gradients = {name: x for name, x in zip(leaves, found, strict=True) if x is not None}
        return outputs._replace(gradients=gradients)

    if mode == "fwd_bwd":
        return lambda: backward(forward()), _nothing
    if mode != "bwd":
        return forward, _nothing
    graph: list[Outputs] = []

    def build_graph() -> None:
        graph[:] = [forward()]

    return lambda: backward(graph.pop()), build_graph


def _form(case: Case, seed: int, place: str) -> dict[str, Any]:
    """Return what the model's builders take from a case."""
    overrides = {} if case.architecture is None else {"architecture": case.architecture}
    return {
        "implementation": get_implementation(case.implementation),
        "seed": seed,
        "dtype": case.dtype,
        "device": place,
        "options": case.options,
        "num_heads": case.num_heads,
        "num_kv_heads": case.num_kv_heads,
        "head_dim": case.head_dim,
        "head_dim_v": case.head_dim_v,
        "mask": mask_from(case.mask),
        **overrides,
    }


def _tokens(case: Case, seed: int, vocab_size: int) -> Tensor:
    """Return ``[B, S]`` tokens on the CPU: bytes of real text, or uniform ones."""
    if case.inputs == "text":
        return stdlib_tokens(case.batch, case.seqlen_q, seed)
    shape, generator = (case.batch, case.seqlen_q), generator_for(seed, "tokens")
    return torch.randint(vocab_size, shape, generator=generator)


def _place(case: Case, fake_mode: FakeTensorMode | None) -> str:
    """Return the device of the tensors."""
    return case.device if fake_mode is None else "cpu"


def _compiled(module: nn.Module, case: Case, fake_mode: FakeTensorMode | None) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(module) if case.compile and fake_mode is None else module
    return compiled
