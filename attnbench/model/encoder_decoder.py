"""The Transformer of two sequences: source and target tokens in, logits of the target out.

Source embeddings → encoder → memory; target embeddings → [mixer, cross-attention over the memory,
feed-forward] x N → head. Padding as in ``transformer.py``.
"""

import torch
from torch import Tensor

from attnbench.contract.errors import UsageError

from .blocks import MixerFactory, Stack
from .config import TransformerConfig
from .decoding import TransformerState, check_generation, generate_tokens
from .embeddings import Embeddings
from .lengths import Lengths, row_lengths, sizes
from .transformer import Transformer, encoded


class EncoderDecoder(Transformer):
    """Predicts a target from a source: the Transformer of 2017, Marian."""

    def __init__(
        self, config: TransformerConfig, make_mixer: MixerFactory, *, dtype: torch.dtype, device: str
    ) -> None:
        super().__init__(config, dtype=dtype, device=device)
        self.source_embeddings = Embeddings(
            config, config.source_vocab_size, dtype=dtype, device=device, name="source"
        )
        self.target_embeddings = Embeddings(
            config,
            config.vocab_size,
            dtype=dtype,
            device=device,
            name="target",
            token=self.source_embeddings.token if config.shares_tokens else None,
        )
        self.encoder = Stack(
            config, make_mixer, "encoder", num_layers=config.num_encoder_layers, dtype=dtype, device=device
        )
        self.decoder = Stack(
            config,
            make_mixer,
            "decoder",
            num_layers=config.num_layers,
            crossing=True,
            dtype=dtype,
            device=device,
        )

    def _read(self) -> Embeddings:
        return self.target_embeddings

    def new_state(self, batch: int, max_seqlen: int) -> TransformerState:
        """An empty decoding state for ``batch`` rows of at most ``max_seqlen`` target positions."""
        return self._new_state(self.decoder, batch, max_seqlen)

    def encode(self, source: Tensor, source_lengths: Lengths | None = None) -> Tensor:
        """The memory ``[B, S, dim]`` that cross-attention reads, of ``source [B, S]``."""
        return encoded(self.source_embeddings, self.encoder, source, source_lengths, name="source_lengths")

    def forward(
        self,
        source: Tensor | None,
        target: Tensor,
        source_lengths: Lengths | None = None,
        target_lengths: Lengths | None = None,
        state: TransformerState | None = None,
    ) -> Tensor:
        """Logits ``[B, T, vocab]`` of the token that follows each position of ``target [B, T]``.

        For training, ``target`` is the wanted sequence shifted right (``losses.shift_right``). With a
        ``state`` of ``new_state`` the target continues what the state holds: the first call encodes the
        source into it, later ones take None in its place. Autograd then records nothing.

        Raises:
            UsageError: a source or target of another shape, type or range, lengths that do not fit, positions
                beyond a learned table or the state, a source that is missing or given twice.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and state is None):
            return self.logits(self.features(source, target, source_lengths, target_lengths, state))

    def features(
        self,
        source: Tensor | None,
        target: Tensor,
        source_lengths: Lengths | None = None,
        target_lengths: Lengths | None = None,
        state: TransformerState | None = None,
    ) -> Tensor:
        """What the decoder's last layer gives, ``[B, T, dim]``."""
        self.target_embeddings.check(target)
        batch, seqlen = sizes(target)
        valid = row_lengths(target_lengths, batch, seqlen, name="target_lengths")
        starts, ends = self._spans(state, valid)
        memory = counts = held = None
        if source is not None:
            if state is not None and state.source_lengths is not None:
                raise UsageError("source: the state holds one already; give None")
            self.source_embeddings.check(source)
            if len(source) != batch:
                raise UsageError(f"source: {batch} rows are needed, as in target, not {len(source)}")
            memory = self.encode(source, source_lengths)
            held = row_lengths(source_lengths, batch, source.shape[1], name="source_lengths")
            counts = None if source_lengths is None else held
        elif state is None or state.source_lengths is None:
            raise UsageError("source: None is accepted only with a state that holds one")
        elif source_lengths is not None:
            raise UsageError("source_lengths: the state holds them already; give None")
        x = self.target_embeddings(target, starts, max(ends, default=0))
        hidden = None if target_lengths is None else valid
        layers = None if state is None else state.layers
        features: Tensor = self.decoder(x, hidden, layers, memory, counts)
        if state is not None:
            state.lengths = ends
            state.source_lengths = state.source_lengths if held is None else held
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
    ) -> Tensor:
        """The targets of each source row of ``tokens [B, S]``, as ``[B, max_new_tokens]``.

        Begins with the config's ``start_token``, which is not part of what comes out; otherwise as in a
        decoder-only model.

        Raises:
            UsageError: a negative number or temperature, and what ``forward`` refuses.
        """
        self.source_embeddings.check(tokens)
        check_generation(max_new_tokens, end_token, self.config.vocab_size)
        batch = len(tokens)
        row_lengths(lengths, batch, tokens.shape[1])
        begin = torch.full((batch, 1), self.config.start_token, dtype=torch.int64, device=tokens.device)

        def features(piece: Tensor, counts: Lengths | None, state: TransformerState) -> Tensor:
            first = state.source_lengths is None
            return self.features(tokens if first else None, piece, lengths if first else None, counts, state)

        return generate_tokens(
            features,
            self.logits,
            lambda: self._new_state(self.decoder, batch, max_new_tokens, "max_new_tokens"),
            begin,
            (1,) * batch,
            max_new_tokens,
            temperature=temperature,
            generator=generator,
            end_token=end_token,
        )
