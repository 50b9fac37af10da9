"""What a Transformer layer holds: anything that moves information between positions.

The interface of every sequence mixer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .masks import Causal, Mask

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MixerConfig:
    """What a mixer is built from; the same for every layer of a stack."""

    dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mask: Mask = field(default_factory=Causal)
    max_seqlen: int = 2048
    rotary: bool = False
    rope_base: float = 10000.0
    bias: bool = False
    scale: float | None = None
    cross: bool = False
    """Keys and values come from ``context``, the queries from ``x``."""
    dtype: str = "float32"
    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the implementation (chunk sizes and the like)."""


class Mixer(Protocol):
    """A module ``forward(x, context, lengths, state) -> (y, state)``; in practice a ``torch.nn.Module``."""

    def __call__(
        self,
        x: "Tensor",
        context: "Tensor | None" = None,
        lengths: "Sequence[int] | Tensor | None" = None,
        state: Any = None,
    ) -> "tuple[Tensor, Any]":
        """Mix ``x`` ``[B, S, dim]`` along S, to the same shape.

        ``context`` ``[B, Sk, dim]`` is where keys and values come from (cross-attention; default ``x``).
        ``lengths`` ``[B]`` counts the valid positions of the keys' side; later ones are hidden. ``state``
        carries what came before ``x`` (decoding); the updated state is returned, ``None`` if none was given.
        """

    def new_state(self, batch: int, max_seqlen: int) -> Any:
        """Return an empty state for ``batch`` rows and at most ``max_seqlen`` positions."""
