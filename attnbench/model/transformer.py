"""The Transformer: tokens ``[B, S]`` in, logits ``[B, S, vocab]`` out, with the mixer as its only slot.

Decoder-only: embeddings (+ positions) → [mixer, feed-forward] x N → norm → logits. Every layer is made alike;
what differs between implementations is what ``make_mixer`` returns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnbench.contract.errors import UsageError

from .config import TransformerConfig
from .layers import Embedding, FeedForward, Linear, make_norm
from .lengths import Lengths, row_lengths
from .positions import PositionTable, sinusoidal_table
from .weights import is_real

MixerFactory = Callable[[str], nn.Module]
"""Makes the mixer of one place, such as ``decoder.layers.0.mixer``."""


@dataclass
class TransformerState:
    """What a decoding model remembers: a state for each layer, and how many positions each row has filled."""

    layers: list[Any]
    lengths: tuple[int, ...]
    max_seqlen: int


class TransformerBlock(nn.Module):
    """One layer: a mixer, then a feed-forward network, each with a norm and a residual connection.

    Pre-norm: ``x + mixer(norm(x))``, ``x + ffn(norm(x))``. Post-norm: ``norm(x + mixer(x))``,
    ``norm(x + ffn(x))``.
    """

    def __init__(
        self, config: TransformerConfig, mixer: nn.Module, *, dtype: torch.dtype, device: str
    ) -> None:
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.mixer_norm = make_norm(config, dtype=dtype, device=device)
        self.mixer = mixer
        self.ffn_norm = make_norm(config, dtype=dtype, device=device)
        self.ffn = FeedForward(config, dtype=dtype, device=device)

    def forward(self, x: Tensor, lengths: Lengths | None = None, state: Any = None) -> tuple[Tensor, Any]:
        """Map ``x [B, S, dim]`` to the same shape; beside it the mixer's state, None if none was given."""
        if self.pre_norm:
            mixed, state = self.mixer(self.mixer_norm(x), lengths=lengths, state=state)
            x = x + mixed
            return x + self.ffn(self.ffn_norm(x)), state
        mixed, state = self.mixer(x, lengths=lengths, state=state)
        x = self.mixer_norm(x + mixed)
        return self.ffn_norm(x + self.ffn(x)), state


class Stack(nn.Module):
    """``num_layers`` blocks, and one more norm behind pre-norm blocks; ``[B, S, dim]`` in and out."""

    def __init__(
        self,
        config: TransformerConfig,
        make_mixer: MixerFactory,
        place: str,
        *,
        num_layers: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerBlock(config, make_mixer(f"{place}.layers.{i}.mixer"), dtype=dtype, device=device)
            for i in range(num_layers)
        )
        pre_norm = config.norm_position == "pre"
        self.norm = make_norm(config, dtype=dtype, device=device) if pre_norm else nn.Identity()

    def new_states(self, batch: int, max_seqlen: int) -> list[Any]:
        """One empty decoding state for each layer."""
        mixers: list[Any] = [layer.mixer for layer in self.layers]
        return [mixer.new_state(batch, max_seqlen) for mixer in mixers]

    def forward(self, x: Tensor, lengths: tuple[int, ...] | None, states: list[Any] | None) -> Tensor:
        """Run all layers; ``states`` holds one state for each and is brought up to date in place."""
        for i, layer in enumerate(self.layers):
            x, state = layer(x, lengths=lengths, state=None if states is None else states[i])
            if states is not None:
                states[i] = state
        out: Tensor = self.norm(x)
        return out


class Transformer(nn.Module):
    """A decoder-only Transformer; made by ``build_model``.

    Rows of a batch are padded at their end and ``lengths`` counts what is valid: padding changes nothing at
    valid positions, and what comes out at padding is finite and means nothing. A row of length 0 adds nothing
    to any gradient unless its own outputs are in the loss. There is no dropout.
    """

    def __init__(
        self, config: TransformerConfig, make_mixer: MixerFactory, *, dtype: torch.dtype, device: str
    ) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = Embedding(config.vocab_size, config.dim, dtype=dtype, device=device)
        learned = config.position == "learned"
        self.position_embedding = (
            Embedding(config.max_seqlen, config.dim, dtype=dtype, device=device) if learned else None
        )
        sinusoidal = config.position == "sinusoidal"
        self.sinusoids = PositionTable(partial(sinusoidal_table, dim=config.dim)) if sinusoidal else None
        self.decoder = Stack(
            config, make_mixer, "decoder", num_layers=config.num_layers, dtype=dtype, device=device
        )
        self.head = (
            None
            if config.tied_embeddings
            else Linear(config.dim, config.vocab_size, bias=False, dtype=dtype, device=device)
        )

    @property
    def param_count(self) -> int:
        """Number of parameters; tied embeddings count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def new_state(self, batch: int, max_seqlen: int) -> TransformerState:
        """An empty decoding state for ``batch`` rows of at most ``max_seqlen`` positions."""
        longest = self.config.max_seqlen
        if self.position_embedding is not None and max_seqlen > longest:
            raise UsageError(
                f"max_seqlen: the learned positions end at {longest}, {max_seqlen} were asked for"
            )
        return TransformerState(self.decoder.new_states(batch, max_seqlen), (0,) * batch, max_seqlen)

    def forward(
        self, tokens: Tensor, lengths: Lengths | None = None, state: TransformerState | None = None
    ) -> Tensor:
        """Logits ``[B, S, vocab]`` of the token that follows each position of ``tokens [B, S]``.

        With a ``state`` of ``new_state`` the tokens continue what the state holds, and the state moves on in
        place: a sequence in pieces gives the same logits as in one pass. ``lengths`` then counts the valid
        tokens of this piece, and autograd records nothing.

        Raises:
            UsageError: tokens of another shape, type or range (the range is looked at on the CPU only, where
                that costs no synchronisation), lengths that do not fit, positions beyond a learned table or
                the state.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and state is None):
            return self.logits(self.features(tokens, lengths, state))

    def features(
        self, tokens: Tensor, lengths: Lengths | None = None, state: TransformerState | None = None
    ) -> Tensor:
        """What the last layer gives, ``[B, S, dim]``: ``forward`` without the projection to logits."""
        self._check(tokens)
        batch, seqlen = tokens.shape
        starts = (0,) * batch if state is None else state.lengths
        if len(starts) != batch:
            raise UsageError(f"state: made for {len(starts)} rows, tokens have {batch}")
        valid = row_lengths(lengths, batch, seqlen)
        ends = tuple(start + count for start, count in zip(starts, valid, strict=True))
        if state is not None and max(ends, default=0) > state.max_seqlen:
            raise UsageError(f"state: made for {state.max_seqlen} positions, {max(ends)} are needed")
        x = self._embedded(tokens, starts, max(ends, default=0))
        hidden = None if lengths is None else valid
        features: Tensor = self.decoder(x, hidden, None if state is None else state.layers)
        if state is not None:
            state.lengths = ends
        return features

    def logits(self, features: Tensor) -> Tensor:
        """``[..., dim]`` to ``[..., vocab]`` by the head, or by the token embedding where they are tied."""
        weight = self.token_embedding.weight if self.head is None else self.head.weight
        return F.linear(features, weight)

    def _check(self, tokens: Tensor) -> None:
        if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise UsageError(
                f"tokens: int64 or int32 [batch, seqlen] is needed, not {tokens.dtype} {list(tokens.shape)}"
            )
        readable = tokens.device.type == "cpu" and is_real(tokens) and not torch.compiler.is_compiling()
        if readable and tokens.numel():
            low, high = (int(value) for value in tokens.aminmax())
            if low < 0 or high >= self.config.vocab_size:
                raise UsageError(
                    f"tokens: from 0 to {self.config.vocab_size - 1}, not {low if low < 0 else high}"
                )

    def _embedded(self, tokens: Tensor, starts: tuple[int, ...], end: int) -> Tensor:
        """Token embeddings plus absolute positions, ``[B, S, dim]``; row b begins at ``starts[b]``."""
        x: Tensor = self.token_embedding(tokens)
        if self.config.scale_embeddings:
            x = x * self.config.dim**0.5
        if self.position_embedding is not None:
            if end > self.config.max_seqlen:
                raise UsageError(
                    f"tokens: the learned positions end at {self.config.max_seqlen}, {end} are needed"
                )
            first = torch.tensor(starts, dtype=torch.int64, device=tokens.device)
            positions = first.unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
            # Padding may stand beyond the table.
            x = x + self.position_embedding(positions.clamp(max=self.config.max_seqlen - 1))
        if self.sinusoids is not None:
            x = x + self.sinusoids.rows(starts, tokens.shape[1], like=x).to(x.dtype)
        return x

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        lengths: Lengths | None = None,
        *,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The tokens that follow each row of the prompt ``tokens [B, S]``, as ``[B, max_new_tokens]``.

        Greedy at ``temperature`` 0; otherwise drawn from ``softmax(logits / temperature)``. The prompt is
        read in one piece, then one token a step.

        Raises:
            UsageError: an empty prompt row, a negative number or temperature, and what ``forward`` refuses.
        """
        self._check(tokens)
        batch, seqlen = tokens.shape
        valid = row_lengths(lengths, batch, seqlen)
        if min(valid, default=1) < 1:
            raise UsageError("tokens: every row of a prompt needs at least one token")
        if max_new_tokens < 0 or temperature < 0:
            raise UsageError(f"max_new_tokens, temperature: not below 0, got {max_new_tokens}, {temperature}")
        state = self.new_state(batch, max(valid, default=0) + max(max_new_tokens - 1, 0))
        chosen: list[Tensor] = []
        piece, counts = tokens, lengths
        for _ in range(max_new_tokens):
            features = self.features(piece, counts, state)
            last = [n - 1 for n in row_lengths(counts, batch, piece.shape[1])]
            rows = torch.arange(batch, device=features.device)
            logits = self.logits(features[rows, torch.tensor(last, device=features.device)])
            piece, counts = _choose(logits, temperature, generator), None
            chosen.append(piece)
        return torch.cat(chosen, dim=1) if chosen else tokens[:, :0]


def _choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """One token a row, ``[B, 1]``, from logits ``[B, vocab]``."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    weights = torch.softmax(logits.float() / temperature, dim=-1)
    return torch.multinomial(weights, 1, generator=generator)
