"""One layer, and a stack of them: mixers and a feed-forward network, each with a norm and a residual."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .config import TransformerConfig
from .layers import FeedForward, make_norm
from .lengths import Lengths

MixerFactory = Callable[[str], nn.Module]
"""Makes the mixer of one place, such as ``decoder.layers.0.mixer`` or ``decoder.layers.0.cross``."""


@dataclass
class CrossingState:
    """What a layer with cross-attention remembers: the states of its two mixers."""

    mixer: Any
    cross: Any


class TransformerBlock(nn.Module):
    """One layer: self-attention, in a decoder with a source cross-attention, then a feed-forward network.

    Pre-norm: ``x + f(norm(x))`` for each of them in turn. Post-norm: ``norm(x + f(x))``. With ``cross``,
    queries come from ``x``, keys and values from ``context`` (arXiv 1706.03762, section 3.1).
    """

    def __init__(
        self,
        config: TransformerConfig,
        mixer: nn.Module,
        cross: nn.Module | None = None,
        *,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.mixer_norm = make_norm(config, dtype=dtype, device=device)
        self.mixer = mixer
        self.cross_norm = None if cross is None else make_norm(config, dtype=dtype, device=device)
        self.cross = cross
        self.ffn_norm = make_norm(config, dtype=dtype, device=device)
        self.ffn = FeedForward(config, dtype=dtype, device=device)

    def new_state(self, batch: int, max_seqlen: int) -> Any:
        """An empty decoding state for ``batch`` rows of at most ``max_seqlen`` positions."""
        mixer: Any = self.mixer
        state = mixer.new_state(batch, max_seqlen)
        if self.cross is None:
            return state
        cross: Any = self.cross
        return CrossingState(state, cross.new_state(batch, max_seqlen))

    def forward(
        self,
        x: Tensor,
        lengths: Lengths | None = None,
        state: Any = None,
        context: Tensor | None = None,
        context_lengths: Lengths | None = None,
    ) -> tuple[Tensor, Any]:
        """Map ``x [B, S, dim]`` to the same shape; beside it the state, None if none was given.

        ``context [B, Sk, dim]`` is what cross-attention reads; with a state it is given once and remembered.
        """
        if self.cross is None:
            x, state = self._residual(self.mixer_norm, self.mixer, x, lengths=lengths, state=state)
        else:
            own, across = (None, None) if state is None else (state.mixer, state.cross)
            x, own = self._residual(self.mixer_norm, self.mixer, x, lengths=lengths, state=own)
            x, across = self._residual(
                self.cross_norm, self.cross, x, context=context, lengths=context_lengths, state=across
            )
            if state is not None:
                state.mixer, state.cross = own, across
        if self.pre_norm:
            return x + self.ffn(self.ffn_norm(x)), state
        return self.ffn_norm(x + self.ffn(x)), state

    def _residual(
        self, norm: nn.Module | None, mixer: nn.Module, x: Tensor, **given: Any
    ) -> tuple[Tensor, Any]:
        assert norm is not None
        if self.pre_norm:
            mixed, state = mixer(norm(x), **given)
            return x + mixed, state
        mixed, state = mixer(x, **given)
        return norm(x + mixed), state


class Stack(nn.Module):
    """``num_layers`` blocks, and where the config says so one more norm; ``[B, S, dim]`` in and out."""

    def __init__(
        self,
        config: TransformerConfig,
        make_mixer: MixerFactory,
        place: str,
        *,
        num_layers: int,
        crossing: bool = False,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        super().__init__()
        self.checkpointed = config.checkpoint_activations
        self.layers = nn.ModuleList(
            TransformerBlock(
                config,
                make_mixer(f"{place}.layers.{i}.mixer"),
                make_mixer(f"{place}.layers.{i}.cross") if crossing else None,
                dtype=dtype,
                device=device,
            )
            for i in range(num_layers)
        )
        self.norm = make_norm(config, dtype=dtype, device=device) if config.final_norm else nn.Identity()

    def new_states(self, batch: int, max_seqlen: int) -> list[Any]:
        """One empty decoding state for each layer."""
        layers: list[Any] = list(self.layers)
        return [layer.new_state(batch, max_seqlen) for layer in layers]

    def forward(
        self,
        x: Tensor,
        lengths: tuple[int, ...] | None,
        states: list[Any] | None = None,
        context: Tensor | None = None,
        context_lengths: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Run all layers; ``states`` holds one state for each and is brought up to date in place."""
        recomputed = self.checkpointed and torch.is_grad_enabled() and states is None
        for i, layer in enumerate(self.layers):
            if recomputed:
                x, _ = checkpoint(layer, x, lengths, None, context, context_lengths, use_reentrant=False)
                continue
            x, state = layer(x, lengths, None if states is None else states[i], context, context_lengths)
            if states is not None:
                states[i] = state
        out: Tensor = self.norm(x)
        return out
