"""Decoding: what a model remembers between calls, and the loop that draws one token after the other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.contract.errors import UsageError

from .lengths import Lengths


@dataclass
class TransformerState:
    """What a decoding model remembers: a state for each layer, and how many positions each row has filled.

    ``form`` is that of the model which made it: another one's layers have other states. ``source_lengths``
    are those of the source that cross-attention has read, None before it did.
    """

    layers: list[Any]
    lengths: tuple[int, ...]
    max_seqlen: int
    form: object
    source_lengths: tuple[int, ...] | None = None


FeaturesOf = Callable[[Tensor, Lengths | None, TransformerState], Tensor]


def generate_tokens(
    features_of: FeaturesOf,
    logits_of: Callable[[Tensor], Tensor],
    make_state: Callable[[], TransformerState],
    prompt: Tensor,
    valid: tuple[int, ...],
    max_new_tokens: int,
    *,
    temperature: float,
    generator: torch.Generator | None,
    end_token: int | None,
    chunk_size: int | None = None,
) -> Tensor:
    """Tokens ``[B, max_new_tokens]`` after the ``valid[b]`` first ones of each row of ``prompt [B, S]``.

    Raises:
        UsageError: a number or temperature that cannot be, a chunk size below 1.
    """
    _require_whole("chunk_size", 1 if chunk_size is None else chunk_size, least=1)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not temperature >= 0:
        raise UsageError(f"temperature: at least 0, not {temperature!r}")
    if not max_new_tokens or not len(prompt):
        return prompt.new_zeros(len(prompt), max_new_tokens)
    state = make_state()
    last = _read_prompt(features_of, prompt, valid, state, chunk_size or max(prompt.shape[1], 1))
    chosen: list[Tensor] = []
    done = torch.zeros(len(prompt), 1, dtype=torch.bool, device=prompt.device)
    while True:
        token = _choose(logits_of(last), temperature, generator)
        if end_token is not None:
            token = token.masked_fill(done, end_token)
            done |= token == end_token
        chosen.append(token)
        if len(chosen) == max_new_tokens:
            return torch.cat(chosen, dim=1)
        if end_token is not None and bool(done.all()):
            rest = token.new_full((len(prompt), max_new_tokens - len(chosen)), end_token)
            return torch.cat([*chosen, rest], dim=1)
        last = features_of(token, None, state)[:, -1]


def check_generation(max_new_tokens: int, end_token: int | None, vocab_size: int) -> None:
    """Refuse what says nothing about how far to go.

    Raises:
        UsageError: no whole number of tokens, an end token that is none, or a model without tokens.
    """
    if not vocab_size:
        raise UsageError("generate: a model without a vocabulary has no tokens to give")
    _require_whole("max_new_tokens", max_new_tokens, least=0)
    if end_token is not None and not (type(end_token) is int and 0 <= end_token < vocab_size):
        raise UsageError(f"end_token: from 0 to {vocab_size - 1}, not {end_token!r}")


def _require_whole(name: str, value: object, *, least: int) -> None:
    if type(value) is not int or value < least:
        raise UsageError(f"{name}: a whole number of at least {least}, not {value!r}")


def _read_prompt(
    features_of: FeaturesOf, prompt: Tensor, valid: tuple[int, ...], state: TransformerState, chunk_size: int
) -> Tensor:
    """Read the prompt in pieces; the features ``[B, dim]`` of each row's last token."""
    batch, seqlen = len(prompt), max(valid, default=0)
    last: Tensor | None = None
    ragged = len(set(valid)) > 1
    for first in range(0, seqlen, chunk_size):
        size = min(chunk_size, seqlen - first)
        counts = tuple(min(max(n - first, 0), size) for n in valid)
        features = features_of(prompt[:, first : first + size], counts if ragged else None, state)
        ends = torch.tensor([max(count - 1, 0) for count in counts], device=prompt.device)
        found = features[torch.arange(batch, device=prompt.device), ends]
        here = torch.tensor([count > 0 for count in counts], device=prompt.device).unsqueeze(1)
        last = found if last is None else torch.where(here, found, last)
    assert last is not None
    return last


def _choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """One token a row, ``[B, 1]``, from logits ``[B, vocab]``."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    # From the maximum down, in float64: however small the temperature, no logit overflows.
    wide = logits.double()
    weights = torch.softmax((wide - wide.amax(dim=-1, keepdim=True)) / temperature, dim=-1)
    return torch.multinomial(weights, 1, generator=generator)
