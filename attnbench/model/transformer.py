"""Transformers of one sequence: tokens in, logits out, with the mixer as the only slot.

Decoder-only: embeddings → [mixer, feed-forward] x L → head. Encoder-only: the same without a causal mask.
Every layer is made alike; what differs between implementations is what ``make_mixer`` returns.

Rows of a batch are padded at their end and ``lengths`` counts what is valid: padding changes nothing at valid
positions, and what comes out at padding is finite and means nothing. A row of length 0 adds nothing to any
gradient unless its own outputs are in the loss. There is no dropout.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys

from attnbench.contract.errors import UsageError

from .blocks import MixerFactory, Stack
from .config import TransformerConfig
from .decoding import TransformerState, check_generation, generate_tokens
from .embeddings import Embeddings
from .layers import LinearHead, MaskedLanguageHead
from .lengths import Lengths, row_lengths, sizes
from .state_dicts import load_weights


class Transformer(nn.Module):
    """What the three architectures share; made by ``build_model``.

    ``implementation`` names the mixer in every layer, ``cross_implementation`` what computes cross-attention
    (None where there is none).
    """

    implementation: str = ""
    cross_implementation: str | None = None

    def __init__(self, config: TransformerConfig, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.config = config
        heads = {"linear": LinearHead, "masked-language": MaskedLanguageHead}
        kind = heads.get(config.head) if config.vocab_size else None
        self.head = None if kind is None else kind(config, dtype=dtype, device=device)

    @property
    def param_count(self) -> int:
        """Number of parameters; tied embeddings count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _read(self) -> Embeddings:
        """The embeddings of the tokens that are predicted."""
        raise NotImplementedError

    def logits(self, features: Tensor) -> Tensor:
        """``[..., dim]`` to ``[..., vocab]`` by the head; without a head, the features themselves."""
        if self.head is None:
            return features
        token = self._read().token
        assert token is not None
        out: Tensor = self.head(features, token.weight)
        return out

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights, all of them or none.

        Raises:
            UsageError: keys that are missing, extra or misshaped, all listed, unless ``strict`` is off.
        """
        if not strict or assign:
            return super().load_state_dict(state_dict, strict, assign)
        load_weights(self, state_dict)
        return _IncompatibleKeys([], [])

    def _new_state(
        self, decoder: Stack, batch: int, max_seqlen: int, name: str = "max_seqlen"
    ) -> TransformerState:
        for size, value in (("batch", batch), (name, max_seqlen)):
            if type(value) is not int or value < 0:
                raise UsageError(f"{size}: a whole number of at least 0, not {value!r}")
        if self.config.position == "learned" and max_seqlen > self.config.max_seqlen:
            raise UsageError(
                f"{name}: the learned positions end at {self.config.max_seqlen}, {max_seqlen} were asked for"
            )
        states = decoder.new_states(batch, max_seqlen)
        return TransformerState(states, (0,) * batch, max_seqlen, self._form())

    def _form(self) -> tuple[object, ...]:
        """What a state has to be made for, to be this model's."""
        return self.config, self.implementation, self.cross_implementation

    def _spans(
        self, state: TransformerState | None, valid: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Where each row's new tokens begin and end, given how many there are.

        Raises:
            UsageError: the state is none of this model's, or made for another batch or for fewer positions.
        """
        if state is None:
            return (0,) * len(valid), valid
        if not isinstance(state, TransformerState):
            raise UsageError(f"state: what new_state gives is needed, not {type(state).__name__}")
        if state.form != self._form():
            raise UsageError("state: made by a model of another config or implementation")
        if len(state.lengths) != len(valid):
            raise UsageError(f"state: made for {len(state.lengths)} rows, tokens have {len(valid)}")
        ends = tuple(start + count for start, count in zip(state.lengths, valid, strict=True))
        if max(ends, default=0) > state.max_seqlen:
            raise UsageError(f"state: made for {state.max_seqlen} positions, {max(ends)} are needed")
        return state.lengths, ends


class DecoderOnly(Transformer):
    """Predicts the next token from those before it: GPT, LLaMA, Qwen."""

    def __init__(
        self, config: TransformerConfig, make_mixer: MixerFactory, *, dtype: torch.dtype, device: str
    ) -> None:
        super().__init__(config, dtype=dtype, device=device)
        self.embeddings = Embeddings(config, config.vocab_size, dtype=dtype, device=device)
        self.decoder = Stack(
            config, make_mixer, "decoder", num_layers=config.num_layers, dtype=dtype, device=device
        )

    def _read(self) -> Embeddings:
        return self.embeddings

    def new_state(self, batch: int, max_seqlen: int) -> TransformerState:
        """An empty decoding state for ``batch`` rows of at most ``max_seqlen`` positions."""
        return self._new_state(self.decoder, batch, max_seqlen)

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
        self.embeddings.check(tokens)
        batch, seqlen = sizes(tokens)
        valid = row_lengths(lengths, batch, seqlen)
        starts, ends = self._spans(state, valid)
        x = self.embeddings(tokens, starts, max(ends, default=0))
        hidden = None if lengths is None else valid
        features: Tensor = self.decoder(x, hidden, None if state is None else state.layers)
        if state is not None:
            state.lengths = ends
        return features

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        lengths: Lengths | None = None,
        *,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
        end_token: int | None = None,
        chunk_size: int | None = None,
    ) -> Tensor:
        """The tokens that follow each row of the prompt ``tokens [B, S]``, as ``[B, max_new_tokens]``.

        Greedy at ``temperature`` 0; otherwise drawn from ``softmax(logits / temperature)``. A row that has
        given ``end_token`` goes on with nothing else. The prompt is read in pieces of ``chunk_size``
        (default: in one), then comes one token a step.

        Raises:
            UsageError: an empty prompt row, a negative number or temperature, and what ``forward`` refuses.
        """
        self.embeddings.check(tokens)
        check_generation(max_new_tokens, end_token, self.config.vocab_size)
        batch, seqlen = tokens.shape
        valid = row_lengths(lengths, batch, seqlen)
        if min(valid, default=1) < 1:
            raise UsageError(
                f"tokens: every row of a prompt needs at least one token, row {valid.index(0)} has none"
            )
        longest = max(valid, default=0) + max(max_new_tokens - 1, 0)
        return generate_tokens(
            lambda piece, counts, state: self.features(piece, counts, state),
            self.logits,
            lambda: self._new_state(self.decoder, batch, longest, "tokens and max_new_tokens"),
            tokens,
            valid,
            max_new_tokens,
            temperature=temperature,
            generator=generator,
            end_token=end_token,
            chunk_size=chunk_size,
        )


class EncoderOnly(Transformer):
    """Every position sees both sides: BERT."""

    def __init__(
        self, config: TransformerConfig, make_mixer: MixerFactory, *, dtype: torch.dtype, device: str
    ) -> None:
        super().__init__(config, dtype=dtype, device=device)
        self.embeddings = Embeddings(config, config.vocab_size, dtype=dtype, device=device)
        self.encoder = Stack(
            config, make_mixer, "encoder", num_layers=config.num_layers, dtype=dtype, device=device
        )

    def _read(self) -> Embeddings:
        return self.embeddings

    def forward(
        self, tokens: Tensor, lengths: Lengths | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """Logits ``[B, S, vocab]`` of the token at each position of ``tokens [B, S]``.

        ``segments [B, S]`` says which of the segment embeddings each token takes, by default the first.

        Raises:
            UsageError: tokens or segments of another shape, type or range, lengths that do not fit, positions
                beyond a learned table.
        """
        return self.logits(self.features(tokens, lengths, segments))

    def features(
        self, tokens: Tensor, lengths: Lengths | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """What the last layer gives, ``[B, S, dim]``: ``forward`` without the head."""
        return encoded(self.embeddings, self.encoder, tokens, lengths, segments)


def encoded(
    embeddings: Embeddings,
    encoder: Stack,
    tokens: Tensor,
    lengths: Lengths | None,
    segments: Tensor | None = None,
    name: str = "lengths",
) -> Tensor:
    """Embed and encode ``tokens [B, S]`` whole: ``[B, S, dim]``."""
    embeddings.check(tokens)
    batch, seqlen = sizes(tokens)
    valid = row_lengths(lengths, batch, seqlen, name=name)
    x = embeddings(tokens, (0,) * batch, max(valid, default=0), segments)
    features: Tensor = encoder(x, None if lengths is None else valid)
    return features
