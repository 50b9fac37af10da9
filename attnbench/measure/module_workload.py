"""A case of level ``block`` or ``model`` made ready. In: a case, a seed. Out: a workload.

A block maps ``x``, a model reads tokens. A model's ``fwd_bwd`` is that of its training loss: the next token
of a decoder, the target of an encoder-decoder by teacher forcing, the hidden tokens of an encoder.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError
from attnbench.contract.state import keep
from attnbench.model.builder import build_block, build_model
from attnbench.model.encoder_decoder import EncoderDecoder
from attnbench.model.losses import masked_language_loss, next_token_loss, teacher_forcing_loss
from attnbench.model.text import stdlib_tokens
from attnbench.model.transformer import EncoderOnly
from attnbench.model.weights import generator_for
from attnbench.plan.case import Case

from .attentions import attentions_of
from .decoding import filled_state, position_tables
from .inputs import draw
from .prepared import Outputs, Workload, by_mode, place_of

HIDDEN_FRACTION = 0.15
"""Of an encoder's tokens: those that its loss is about (arXiv 1810.04805, section 3.1)."""
HIDDEN_TOKEN = 0
"""What stands in their place; a vocabulary of bytes has no token for it."""


def block_workload(case: Case, seed: int, fake_mode: FakeTensorMode | None) -> Workload:
    """Make one layer ready, on drawn ``x`` and, with cross-attention, a drawn ``context``."""
    place, config = place_of(case, fake_mode), case.config()
    shapes = {"x": (case.batch, case.seqlen_q, config.dim)}
    if config.architecture == "encoder-decoder" and case.mode != "decode":
        shapes["context"] = (case.batch, case.seqlen_k, config.dim)
    if case.problem().needs_gradients:
        shapes["grad_out"] = shapes["x"]
    with fake_mode or ExitStack():
        module = build_block(case.preset or "", **_form(case, seed, place))
        inputs = {
            name: draw(case.inputs, shape, case.dtype, seed=seed, name=name).to(place)
            for name, shape in shapes.items()
        }
    return _of_block(case, seed, module, inputs, fake_mode)


def _of_block(
    case: Case, seed: int, module: nn.Module, inputs: dict[str, Tensor], fake_mode: FakeTensorMode | None
) -> Workload:
    run = _compiled(module, case, fake_mode)
    x, context, lengths = inputs["x"], inputs.get("context"), case.key_lengths

    def forward() -> Outputs:
        if context is None:
            return Outputs(run(x, lengths)[0])
        return Outputs(run(x, _target_lengths(case), None, context, lengths)[0])

    leaves = {name: tensor for name, tensor in inputs.items() if name != "grad_out"}
    return _of_module(
        case,
        seed,
        module,
        inputs,
        fake_mode,
        forward=forward,
        step=lambda state: Outputs(run(x, None, state)[0]),
        leaves=leaves,
        grad_out=inputs.get("grad_out"),
    )


def model_workload(case: Case, seed: int, fake_mode: FakeTensorMode | None) -> Workload:
    """Make a model ready, on real text or uniform tokens."""
    place, config = place_of(case, fake_mode), case.config()
    with fake_mode or ExitStack():
        module = build_model(case.preset or "", **_form(case, seed, place))
    inputs = {"tokens": _tokens(case, seed, "tokens", case.seqlen_q, config.vocab_size)}
    if config.architecture == "encoder-decoder" and case.mode != "decode":
        inputs["source"] = _tokens(case, seed, "source", case.seqlen_k, config.source_vocab_size)
    if config.architecture == "encoder-only" and case.problem().needs_gradients:
        inputs["chosen"] = _chosen(case, seed)
    placed = {
        name: x.to(place) if fake_mode is None else fake_mode.from_tensor(x) for name, x in inputs.items()
    }
    return _of_model(case, seed, module, placed, fake_mode)


def _of_model(
    case: Case, seed: int, module: nn.Module, inputs: dict[str, Tensor], fake_mode: FakeTensorMode | None
) -> Workload:
    run = _compiled(module, case, fake_mode)
    tokens, lengths = inputs["tokens"], case.key_lengths
    with_loss = case.problem().needs_gradients
    crossing = isinstance(module, EncoderDecoder)

    def forward() -> Outputs:
        if crossing:
            sides = inputs["source"], tokens, lengths, _target_lengths(case)
            return Outputs(teacher_forcing_loss(run, *sides) if with_loss else run(*sides))
        if not with_loss:
            return Outputs(run(tokens, lengths))
        if isinstance(module, EncoderOnly):
            chosen = inputs["chosen"]
            logits = run(tokens.masked_fill(chosen, HIDDEN_TOKEN), lengths)
            return Outputs(masked_language_loss(logits, tokens, chosen))
        return Outputs(next_token_loss(run(tokens, lengths), tokens, lengths))

    def step(state: Any) -> Outputs:
        return Outputs(run(None, tokens, state=state) if crossing else run(tokens, state=state))

    return _of_module(
        case, seed, module, inputs, fake_mode, forward=forward, step=step, leaves={}, grad_out=None
    )


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
    of = {"block": _of_block, "model": _of_model}[workload.level]
    return of(plain, workload.seed, module, inputs, None)


def _of_module(
    case: Case,
    seed: int,
    module: nn.Module,
    inputs: dict[str, Tensor],
    fake_mode: FakeTensorMode | None,
    *,
    forward: Callable[[], Outputs],
    step: Callable[[Any], Outputs],
    leaves: dict[str, Tensor],
    grad_out: Tensor | None,
) -> Workload:
    """Finish a workload whose weights, beside ``leaves``, get gradients."""
    form: dict[str, Any] = {"case": case, "seed": seed, "inputs": inputs, "module": module}
    attentions = attentions_of(case)
    needs_gradients = attentions[0].problem.needs_gradients
    module.requires_grad_(needs_gradients)
    for leaf in leaves.values():
        leaf.requires_grad_(needs_gradients)
    if case.mode == "decode":
        with fake_mode or ExitStack():
            form["tables"] = position_tables(module, case)
            form["state"] = filled_state(module, case, seed)
            restore = keep(form["state"])
        held = [form["state"]]

        def prepare() -> None:
            held[:] = [restore()]

        call: Callable[[], Outputs] = lambda: step(held[0])  # noqa: E731  # typed, as the other branch
    else:
        call, prepare = by_mode(case.mode, forward, {**leaves, **dict(module.named_parameters())}, grad_out)
    return Workload(**form, attentions=attentions, call=call, prepare=prepare, fake_mode=fake_mode)


def _form(case: Case, seed: int, place: str) -> dict[str, Any]:
    """Return what the model's builders take from a case."""
    return {
        "implementation": get_implementation(case.implementation),
        "seed": seed,
        "dtype": case.dtype,
        "device": place,
        "options": case.options,
        **case.overrides(),
    }


def _target_lengths(case: Case) -> tuple[int, ...] | None:
    """Return how far each target goes: as far as its source, if it is that long."""
    lengths = case.key_lengths
    return None if lengths is None else tuple(min(n, case.seqlen_q) for n in lengths)


def _tokens(case: Case, seed: int, name: str, seqlen: int, vocab_size: int) -> Tensor:
    """Return ``[B, seqlen]`` tokens on the CPU: bytes of real text, or uniform ones."""
    if case.inputs == "text":
        # A source is another passage than its target.
        return stdlib_tokens(case.batch, seqlen, seed + (name == "source"))
    return torch.randint(vocab_size, (case.batch, seqlen), generator=generator_for(seed, name))


def _chosen(case: Case, seed: int) -> Tensor:
    """Return which tokens ``[B, S]`` an encoder has to guess, none of them padding."""
    shape = (case.batch, case.seqlen_k)
    chosen = torch.rand(shape, generator=generator_for(seed, "chosen")) < HIDDEN_FRACTION
    ends = torch.tensor(case.key_lengths or (case.seqlen_k,) * case.batch).unsqueeze(1)
    return chosen & (torch.arange(case.seqlen_k) < ends)


def _compiled(module: nn.Module, case: Case, fake_mode: FakeTensorMode | None) -> Any:
    return torch.compile(module) if case.compile and fake_mode is None else module
