"""What a Transformer is made of, as plain data: fields in, a checked config out. Loads no torch."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from attnbench.contract.errors import UsageError, nearest
from attnbench.contract.masks import Causal, Full, Mask, mask_from

from .rope import RopeScaling, rope_scaling_from

Architecture = Literal["decoder-only", "encoder-only", "encoder-decoder"]
Norm = Literal["layernorm", "rmsnorm"]
NormPosition = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu"]
Position = Literal["sinusoidal", "learned", "rope", "none"]
Sinusoids = Literal["interleaved", "halves"]
Head = Literal["linear", "masked-language", "none"]

_CHOICES = {
    "architecture": get_args(Architecture),
    "norm": get_args(Norm),
    "norm_position": get_args(NormPosition),
    "activation": get_args(Activation),
    "position": get_args(Position),
    "sinusoids": get_args(Sinusoids),
    "head": get_args(Head),
}
_SIZES = {"vocab_size": 0, "dim": 1, "num_layers": 1, "num_heads": 1, "max_seqlen": 1, "num_segments": 0}
"""Sizes that are not derived, and the least that each may be."""
_OF_CROSSING = ("num_encoder_layers", "source_vocab_size", "cross_implementation")
"""Fields that belong to an encoder-decoder alone."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """One Transformer: sizes, forms and masks.

    There is no dropout, neither in training nor in evaluation: two calls on the same input are equal, and
    what differs between two implementations is the attention alone.

    Sizes. ``num_layers`` counts the layers of the decoder (of the encoder in an encoder-only model) and
    ``num_encoder_layers`` those of an encoder-decoder's encoder. A size left at 0 is derived, and holds the
    derived number afterwards: ``num_kv_heads = num_heads``, ``head_dim = dim // num_heads``, ``head_dim_v =
    head_dim``, ``ffn_dim = 4 * dim``, ``num_encoder_layers = num_layers`` and ``source_vocab_size =
    vocab_size`` (encoder-decoder). ``max_seqlen`` is the longest sequence: the rows of a learned position
    table, what an implementation's own learned parts are made for, and the length that ``dynamic`` and
    ``longrope`` frequencies follow; nothing else is bounded by it.
    ``vocab_size = 0`` is a model without tokens: embeddings ``[B, S, dim]`` go in, features come out.

    Embeddings. ``position``: ``sinusoidal`` and ``learned`` are added to the embeddings, ``rope`` rotates q
    and k (arXiv 2104.09864) with frequencies that ``rope_scaling`` stretches for long contexts.
    ``sinusoids``: sine and cosine in turn (arXiv 1706.03762), or all sines before all cosines (Marian).
    ``scale_embeddings`` multiplies token embeddings by ``sqrt(dim)`` (arXiv 1706.03762, section 3.4).
    ``num_segments`` segment embeddings and a norm behind the sum (``embedding_norm``) are BERT's.
    ``shared_embeddings``: source and target of an encoder-decoder share one table.

    Layers. ``norm_position``: ``pre`` is ``x + f(norm(x))``, ``post`` is ``norm(x + f(x))`` (arXiv
    1706.03762). ``final_norm``: one more norm at the end; None means with pre-norm only. ``activation``:
    ``gelu`` is exact, ``gelu-tanh`` its tanh approximation (GPT-2's), ``silu`` is ``x * sigmoid(x)``,
    ``swiglu`` is ``silu(x Wg) * (x Wu)`` (arXiv 2002.05202). ``scale`` of the softmax, None for ``head_dim **
    -0.5``. ``checkpoint_activations``: layers are computed again in the backward pass instead of kept (arXiv
    1604.06174).

    Head. ``linear`` is a projection to the vocabulary, ``masked-language`` is BERT's (dense, activation,
    norm, projection), ``none`` gives features; ``tied_embeddings`` projects with the token table. A target
    of an encoder-decoder begins with ``start_token``.

    Masks, each a name, a dict or a ``Mask``: ``mask`` of the decoder's self-attention, ``encoder_mask`` of
    the encoder's. ``cross_implementation`` names what computes cross-attention; None is the implementation
    itself where it can, else sdpa.

    Raises:
        UsageError: a field that cannot be; it names the field, what came and what is accepted.
    """

    architecture: Architecture = "decoder-only"
    vocab_size: int
    source_vocab_size: int = 0
    dim: int
    num_layers: int
    num_encoder_layers: int = 0
    num_heads: int
    num_kv_heads: int = 0
    head_dim: int = 0
    head_dim_v: int = 0
    ffn_dim: int = 0
    max_seqlen: int = 1024
    num_segments: int = 0
    norm: Norm = "layernorm"
    norm_position: NormPosition = "pre"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    final_norm: bool | None = None
    embedding_norm: bool = False
    activation: Activation = "gelu"
    position: Position = "learned"
    sinusoids: Sinusoids = "interleaved"
    rope_base: float = 10000.0
    rope_scaling: RopeScaling | None = None
    scale: float | None = None
    qkv_bias: bool = True
    out_bias: bool = True
    ffn_bias: bool = True
    scale_embeddings: bool = False
    shared_embeddings: bool = True
    tied_embeddings: bool = True
    head: Head = "linear"
    head_bias: bool = False
    start_token: int = 0
    checkpoint_activations: bool = False
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
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.type in (bool, bool | None) and type(value) is not bool and value is not item.default:
                raise UsageError(f"{item.name}: must be True or False, not {value!r}")
        for name, least in _SIZES.items():
            _require_size(name, getattr(self, name), least=least)
        self._check_crossing()
        if not self.head_dim and self.dim % self.num_heads:
            raise UsageError(
                f"dim: {self.dim} is not divisible by num_heads {self.num_heads}; or give head_dim"
            )
        for name, derived in self._derived().items():
            _require_size(name, getattr(self, name), least=0)
            object.__setattr__(self, name, getattr(self, name) or derived())
        if self.num_heads % self.num_kv_heads:
            raise UsageError(f"num_kv_heads: {self.num_kv_heads} does not divide num_heads {self.num_heads}")
        for name in ("norm_eps", "rope_base"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value <= 0:
                raise UsageError(f"{name}: must be a positive number, not {value!r}")
        for name in ("mask", "encoder_mask"):
            object.__setattr__(self, name, mask_from(getattr(self, name)))
        if self.final_norm is None:
            object.__setattr__(self, "final_norm", self.norm_position == "pre")
        object.__setattr__(self, "rope_scaling", rope_scaling_from(self.rope_scaling))
        self._check_rotation()
        self._check_tokens()

    def _check_crossing(self) -> None:
        for name in _OF_CROSSING:
            value = getattr(self, name)
            if value and self.architecture != "encoder-decoder":
                raise UsageError(f"{name}: only encoder-decoder has it, not {self.architecture}")
        cross = self.cross_implementation
        if cross is not None and not isinstance(cross, str):
            raise UsageError(f"cross_implementation: a name is needed, not {cross!r}")

    def _check_rotation(self) -> None:
        if self.position != "rope":
            if self.rope_scaling is not None:
                raise UsageError(f"rope_scaling: scales rotary positions, and position is {self.position!r}")
            return
        if self.head_dim % 2:
            raise UsageError(
                f"head_dim: rotary positions rotate pairs, so it must be even, not {self.head_dim}"
            )
        if self.rope_scaling is not None:
            self.rope_scaling.check_width(self.head_dim)

    def _check_tokens(self) -> None:
        _require_size("start_token", self.start_token, least=0)
        if self.vocab_size and self.start_token >= self.vocab_size:
            raise UsageError(f"start_token: from 0 to {self.vocab_size - 1}, not {self.start_token}")
        if self.head == "masked-language" and self.architecture != "encoder-only":
            raise UsageError(f"head: masked-language belongs to encoder-only, not to {self.architecture}")
        if self.num_segments and self.architecture != "encoder-only":
            raise UsageError(f"num_segments: only encoder-only has segments, not {self.architecture}")

    @property
    def self_mask(self) -> Mask:
        """The mask of the attention that gives the model its name: the decoder's, or an encoder-only's."""
        return self.encoder_mask if self.architecture == "encoder-only" else self.mask

    @property
    def shares_tokens(self) -> bool:
        """Whether source and target of an encoder-decoder read one token table."""
        return self.shared_embeddings and self.source_vocab_size == self.vocab_size

    def _derived(self) -> dict[str, Callable[[], int]]:
        """The rule of each size that may be left at 0, in the order in which they build on each other."""
        return {
            "num_kv_heads": lambda: self.num_heads,
            "head_dim": lambda: self.dim // self.num_heads,
            "head_dim_v": lambda: self.head_dim,
            "ffn_dim": lambda: 4 * self.dim,
            "num_encoder_layers": lambda: self.num_layers if self.architecture == "encoder-decoder" else 0,
            "source_vocab_size": lambda: self.vocab_size if self.architecture == "encoder-decoder" else 0,
        }

    def replace(self, **changes: Any) -> Self:
        """The same with some fields changed; a size that stood at its derived number is derived anew."""
        unknown = sorted(set(changes) - {item.name for item in dataclasses.fields(self)})
        if unknown:
            known = [item.name for item in dataclasses.fields(self)]
            raise UsageError(f"{unknown[0]}: no field of TransformerConfig{nearest(unknown[0], known)}")
        follow: dict[str, Any] = {
            name: 0 for name, rule in self._derived().items() if getattr(self, name) == rule()
        }
        if self.final_norm == (self.norm_position == "pre"):
            follow["final_norm"] = None
        return dataclasses.replace(self, **(follow | changes))


def _require_size(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}: must be a whole number of at least {least}, not {value!r}")
