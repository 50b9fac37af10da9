"""The parts of a model that are not attention: projections, norms, the feed-forward network and the heads."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TransformerConfig

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
}


class Linear(nn.Linear):
    """``x W^T + b`` whose weights are left undrawn: ``weights.draw_weights`` draws them by name."""

    def reset_parameters(self) -> None:
        """Draw nothing."""


class Embedding(nn.Embedding):
    """Rows of a table, left undrawn like ``Linear``."""

    def reset_parameters(self) -> None:
        """Draw nothing."""


def make_norm(config: TransformerConfig, *, dtype: torch.dtype, device: str) -> nn.Module:
    """LayerNorm ``(x - mean) / sqrt(var + eps) * w + b``, or RMSNorm ``x / sqrt(mean(x^2) + eps) * w``.

    Sources: arXiv 1607.06450, arXiv 1910.07467.
    """
    if config.norm == "layernorm":
        bias = config.norm_bias
        return nn.LayerNorm(config.dim, eps=config.norm_eps, bias=bias, dtype=dtype, device=device)
    return nn.RMSNorm(config.dim, eps=config.norm_eps, dtype=dtype, device=device)


class FeedForward(nn.Module):
    """``down(act(up(x)))``, or ``down(silu(gate(x)) * up(x))`` for swiglu, at each position by itself.

    In the original ``relu(x W1 + b1) W2 + b2`` (arXiv 1706.03762, section 3.3).
    """

    def __init__(self, config: TransformerConfig, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        make = partial(Linear, bias=config.ffn_bias, dtype=dtype, device=device)
        self.gate = make(config.dim, config.ffn_dim) if config.activation == "swiglu" else None
        self.up = make(config.dim, config.ffn_dim)
        self.down = make(config.ffn_dim, config.dim)
        self.activation = _ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, S, dim]`` to ``[B, S, dim]``."""
        if self.gate is None:
            hidden = self.activation(self.up(x))
        else:
            hidden = self.activation(self.gate(x)) * self.up(x)
        out: Tensor = self.down(hidden)
        return out


class LinearHead(nn.Module):
    """``x W^T + b`` to the vocabulary; without a weight of its own it takes the token table's."""

    def __init__(self, config: TransformerConfig, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        own = not config.tied_embeddings
        self.weight = (
            nn.Parameter(torch.empty(config.vocab_size, config.dim, dtype=dtype, device=device))
            if own
            else None
        )
        self.bias = (
            nn.Parameter(torch.zeros(config.vocab_size, dtype=dtype, device=device))
            if config.head_bias
            else None
        )

    def forward(self, features: Tensor, token_table: Tensor) -> Tensor:
        """Map ``[..., dim]`` to ``[..., vocab]``."""
        return F.linear(features, token_table if self.weight is None else self.weight, self.bias)


class MaskedLanguageHead(LinearHead):
    """``norm(act(x W^T + b))``, then the projection to the vocabulary (arXiv 1810.04805)."""

    def __init__(self, config: TransformerConfig, *, dtype: torch.dtype, device: str) -> None:
        super().__init__(config, dtype=dtype, device=device)
        self.dense = Linear(config.dim, config.dim, dtype=dtype, device=device)
        self.activation = _ACTIVATIONS[config.activation]
        self.norm = make_norm(config, dtype=dtype, device=device)

    def forward(self, features: Tensor, token_table: Tensor) -> Tensor:
        """Map ``[..., dim]`` to ``[..., vocab]``."""
        return super().forward(self.norm(self.activation(self.dense(features))), token_table)
