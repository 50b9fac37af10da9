"""What a Transformer layer holds: anything that moves information between positions.

The interface of every sequence mixer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .errors import UsageError
from .masks import Causal, Mask

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MixerConfig:
    """What a mixer is built from; the same for every layer of a stack. What is left open is filled in.

    Raises:
        UsageError: keys or values of another width than the queries without ``cross``.
    """

    dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int = 0
    """Width of a value head; 0 for ``head_dim``."""
    mask: Mask = field(default_factory=Causal)
    """Of self-attention; cross-attention sees all of its context."""
    max_seqlen: int = 2048
    rotary: bool = False
    rope_base: float = 10000.0
    bias: bool = False
    out_bias: bool | None = None
    """Of the output projection; None for ``bias``."""
    scale: float | None = None
    cross: bool = False
    """Keys and values come from ``context``, the queries from ``x``."""
    key_dim: int = 0
    """Width of what keys are made from, under ``cross``; 0 for ``dim``."""
    value_dim: int = 0
    """Width of what values are made from, under ``cross``; 0 for ``dim``."""
    dtype: str = "float32"
    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the implementation (chunk sizes and the like)."""

    def __post_init__(self) -> None:
        """Fill in what follows from the rest."""
        out_bias = self.bias if self.out_bias is None else self.out_bias
        filled = {
            "head_dim_v": self.head_dim_v or self.head_dim,
            "out_bias": out_bias,
            "key_dim": self.key_dim or self.dim,
            "value_dim": self.value_dim or self.dim,
        }
        for name, value in filled.items():
            object.__setattr__(self, name, value)
        if not self.cross and (self.key_dim, self.value_dim) != (self.dim, self.dim):
            raise UsageError(
                f"key_dim={self.key_dim}, value_dim={self.value_dim}: "
                f"self-attention makes keys and values from what is {self.dim} wide"
            )


class Mixer(Protocol):
    """A module ``forward(x, context, lengths, state) -> (y, state)``; in practice a ``torch.nn.Module``."""

    def __call__(
        self,
        x: "Tensor",
        context: "Tensor | tuple[Tensor, Tensor] | None" = None,
        lengths: "Sequence[int] | Tensor | None" = None,
        state: Any = None,
    ) -> "tuple[Tensor, Any]":
        """Mix ``x`` ``[B, S, dim]`` along S, to the same shape.

        ``context`` ``[B, Sk, dim]`` is where keys and values come from (cross-attention; default ``x``), or a
        pair of one for the keys and one for the values. ``lengths`` ``[B]`` counts the valid positions of the
        keys' side, or marks them (booleans ``[B, Sk]``); later ones are hidden. ``state`` carries what came
        before ``x`` (decoding), or the context, which is then given once; the updated state is returned,
        ``None`` if none was given.
        """

    def new_state(self, batch: int, max_seqlen: int) -> Any:
        """Return an empty state for ``batch`` rows and at most ``max_seqlen`` positions."""
