"""Every attention that a case computes: who computes it, of which shape, in how many layers. In: a case.

Out: the attentions, the same for a real call, its prediction and its support.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import torch

from attnbench.contract.cost import Cost, compulsory_bytes
from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import Implementation, level_refusals
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.contract.steps import decoded, reading
from attnbench.model.builder import MixerBuilder
from attnbench.model.config import TransformerConfig
from attnbench.plan.case import Case


class Attention(NamedTuple):
    """One problem, by one implementation, in ``layers`` layers; ``Case.problems`` names the ``place``."""

    place: str
    implementation: Implementation
    problem: Problem
    layers: int = 1

    @property
    def asked(self) -> Problem:
        """What the implementation is asked: while decoding, the step that its state leaves."""
        p = self.problem
        if p.mode != "decode":
            return p
        if self.place == "cross":
            return p if self.implementation.read is None else reading(p)
        if self.implementation.extend is None and self.implementation.make_mixer is None:
            return decoded(p, in_order=self.implementation.semantics.by_position)
        lengths = None if p.key_lengths is None else (p.seqlen_q,) * p.batch
        return p.replace(seqlen_k=p.seqlen_q, key_lengths=lengths, query_start=None)

    @property
    def cost(self) -> Cost:
        """What the implementation states of one layer's call; while decoding, cross-attention adds no key to
        what it keeps: a state is read, and keys and values are those of a forward pass.
        """
        p = self.problem
        if p.mode == "decode" and self.place == "cross":
            p = p.replace(mode="fwd") if self.implementation.read is None else self.asked
        return self.implementation.cost(p)

    @property
    def least_flops(self) -> int:
        """FLOPs of visible pairs; what stands in for softmax may do fewer, and says how many."""
        cost = self.cost
        if self.implementation.semantics.name == SOFTMAX.name or cost.executed_flops is None:
            return cost.flops
        return min(cost.flops, cost.executed_flops)

    @property
    def least_bytes(self) -> int:
        """Compulsory bytes; what needs no more than a state, as linear attention while it decodes, states
        less than the problem.
        """
        return min(compulsory_bytes(self.problem), self.cost.compulsory_bytes)


def attentions_of(case: Case) -> tuple[Attention, ...]:
    """Return the attentions of one call, the case's own implementation first.

    Raises:
        UsageError: an unknown implementation or preset, or an impossible shape.
    """
    core = get_implementation(case.implementation)
    if case.level == "attention":
        return (Attention("attention", core, case.problem()),)
    config = case.config()
    return tuple(
        Attention(place, *_crossing(case, config, core, problem), _layers(case, config, place))
        if place == "cross"
        else Attention(place, core, problem, _layers(case, config, place))
        for place, problem in case.problems().items()
    )


def _crossing(
    case: Case, config: TransformerConfig, core: Implementation, problem: Problem
) -> tuple[Implementation, Problem]:
    dtype = getattr(torch, case.dtype)
    builder = MixerBuilder(config, core, 0, dtype, case.device, case.options)
    crossing = builder.cross_core or core
    return crossing, problem if crossing is core else problem.replace(options={})


def _layers(case: Case, config: TransformerConfig, place: str) -> int:
    if case.level == "block":
        return 1
    of_source = place == "encoder" and config.architecture == "encoder-decoder"
    return config.num_encoder_layers if of_source else config.num_layers


def case_refusals(case: Case, attentions: tuple[Attention, ...] | None = None) -> list[str]:
    """Return every reason why the case cannot run, in whichever of its attentions; empty if it can.

    ``attentions`` are those of the case, for whoever has them.
    """
    return list(dict.fromkeys(_refusals(case, attentions or attentions_of(case))))


def _refusals(case: Case, attentions: tuple[Attention, ...]) -> Iterator[str]:
    if case.level != "attention":
        config, decoding = case.config(), case.mode == "decode"
        if config.architecture == "encoder-only" and decoding:
            yield "an encoder reads whole sequences: it has no mode decode"
            return
        if case.level == "model" and config.head == "none" and attentions[0].problem.needs_gradients:
            yield "a model without a head has no loss to differentiate"
        if decoding:  # what decodes is built whole, as for a forward pass over its context
            attentions += attentions_of(msgspec.structs.replace(case, mode="fwd", seqlen_q=case.seqlen_k))
    for attention in attentions:
        yield from level_refusals(attention.implementation, attention.asked, case.level)
