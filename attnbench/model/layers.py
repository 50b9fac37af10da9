"""The parts of a layer that are not attention: projections, norms and the feed-forward network."""

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
        return nn.LayerNorm(config.dim, eps=config.norm_eps, dtype=dtype, device=device)
    return nn.RMSNorm(config.dim, eps=config.norm_eps, dtype=dtype, device=device)


class FeedForward(nn.Module):
    """``down(act(up(x)))``, or ``down(silu(gate(x)) * up(x))`` for swiglu, at each position by itself."""

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
