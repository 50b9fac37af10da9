"""What a Transformer is made of, as plain data: fields in, a checked config out. Loads no torch."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from attnbench.contract.errors import UsageError, nearest
from attnbench.contract.masks import Causal, Full, Mask, mask_from

Architecture = Literal["decoder-only", "encoder-only", "encoder-decoder"]
Norm = Literal["layernorm", "rmsnorm"]
NormPosition = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "gelu-tanh", "swiglu"]
Position = Literal["sinusoidal", "learned", "rope", "none"]

BUILT: tuple[Architecture, ...] = ("decoder-only",)
"""Architectures that ``build_model`` builds; a config describes the others too."""

_CHOICES = {
    "architecture": get_args(Architecture),
    "norm": get_args(Norm),
    "norm_position": get_args(NormPosition),
    "activation": get_args(Activation),
    "position": get_args(Position),
}
_SIZES = ("vocab_size", "dim", "num_layers", "num_heads", "max_seqlen")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """One Transformer: sizes, forms and masks.

    There is no dropout, neither in training nor in evaluation: two calls on the same input are equal, and
    what differs between two implementations is the attention alone.

    Sizes. ``num_layers`` counts the layers of the decoder (of the encoder in an encoder-only model) and
    ``num_encoder_layers`` those of an encoder-decoder's encoder. A size left at 0 is derived, and holds the
    derived number afterwards: ``num_kv_heads = num_heads``, ``head_dim = dim // num_heads``, ``head_dim_v =
    head_dim``, ``ffn_dim = 4 * dim``, ``num_encoder_layers = num_layers`` (encoder-decoder). ``max_seqlen``
    is the longest sequence: the rows of a learned position table, and what an implementation's own learned
    parts are made for; nothing else is bounded by it.

    Forms. ``norm_position``: ``pre`` is ``x + f(norm(x))`` and one more norm at the end, ``post`` is ``norm(x
    + f(x))`` (arXiv 1706.03762). ``activation``: ``gelu`` is exact, ``gelu-tanh`` its tanh approximation
    (GPT-2's), ``swiglu`` is ``silu(x Wg) * (x Wu)`` (arXiv 2002.05202). ``position``: ``sinusoidal`` and
    ``learned`` are added to the embeddings, ``rope`` rotates q and k (arXiv 2104.09864). ``scale_embeddings``
    multiplies token embeddings by ``sqrt(dim)`` (arXiv 1706.03762, section 3.4).

    Masks, each a name, a dict or a ``Mask``: ``mask`` of the decoder's self-attention, ``encoder_mask`` of
    the encoder's. ``cross_implementation`` names what computes cross-attention where the implementation
    cannot.

    Raises:
        UsageError: a field that cannot be; it names the field, what came and what is accepted.
    """

    architecture: Architecture = "decoder-only"
    vocab_size: int
    dim: int
    num_layers: int
    num_encoder_layers: int = 0
    num_heads: int
    num_kv_heads: int = 0
    head_dim: int = 0
    head_dim_v: int = 0
    ffn_dim: int = 0
    max_seqlen: int = 1024
    norm: Norm = "layernorm"
    norm_position: NormPosition = "pre"
    norm_eps: float = 1e-5
    activation: Activation = "gelu"
    position: Position = "learned"
    rope_base: float = 10000.0
    qkv_bias: bool = True
    out_bias: bool = True
    ffn_bias: bool = True
    scale_embeddings: bool = False
    tied_embeddings: bool = True
    mask: Mask = field(default_factory=Causal)
    encoder_mask: Mask = field(default_factory=Full)
    cross_implementation: str | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise UsageError(
                    f"{name}: {value!r} is none of {', '.join(choices)}{nearest(str(value), choices)}"
                )
        for name in _SIZES:
            _require_size(name, getattr(self, name), least=1)
        if not self.head_dim and self.dim % self.num_heads:
            raise UsageError(
                f"dim: {self.dim} is not divisible by num_heads {self.num_heads}; or give head_dim"
            )
        for name, derived in self._derived().items():
            _require_size(name, getattr(self, name), least=0)
            object.__setattr__(self, name, getattr(self, name) or derived())
        if self.num_heads % self.num_kv_heads:
            raise UsageError(f"num_kv_heads: {self.num_kv_heads} does not divide num_heads {self.num_heads}")
        if self.position == "rope" and self.head_dim % 2:
            raise UsageError(
                f"head_dim: rotary positions rotate pairs, so it must be even, not {self.head_dim}"
            )
        for name in ("norm_eps", "rope_base"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
                raise UsageError(f"{name}: must be a positive number, not {value!r}")
        for name in ("mask", "encoder_mask"):
            object.__setattr__(self, name, mask_from(getattr(self, name)))

    def _derived(self) -> dict[str, Callable[[], int]]:
        """The rule of each size that may be left at 0, in the order in which they build on each other."""
        return {
            "num_kv_heads": lambda: self.num_heads,
            "head_dim": lambda: self.dim // self.num_heads,
            "head_dim_v": lambda: self.head_dim,
            "ffn_dim": lambda: 4 * self.dim,
            "num_encoder_layers": lambda: self.num_layers if self.architecture == "encoder-decoder" else 0,
        }

    def replace(self, **changes: Any) -> Self:
        """The same with some fields changed; a size that stood at its derived number is derived anew."""
        unknown = sorted(set(changes) - {item.name for item in dataclasses.fields(self)})
        if unknown:
            known = [item.name for item in dataclasses.fields(self)]
            raise UsageError(f"{unknown[0]}: no field of TransformerConfig{nearest(unknown[0], known)}")
        follow = {name: 0 for name, rule in self._derived().items() if getattr(self, name) == rule()}
        return dataclasses.replace(self, **(follow | changes))


def unbuilt(architecture: str) -> str | None:
    """Say why an architecture cannot be built; None where it can."""
    if architecture in BUILT:
        return None
    return f"architecture: {architecture} cannot be built yet, only {', '.join(BUILT)} can"


def _require_size(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}: must be a whole number of at least {least}, not {value!r}")
