"""Rotary frequencies, stretched for contexts longer than the trained one. In: plain numbers; out: floats.

Frequencies are computed in Python's own floats (float64). Loads no torch.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from attnbench.contract.errors import UsageError, nearest

Kind = Literal["linear", "dynamic", "llama3", "yarn", "longrope"]

_NEEDS_ORIGINAL = ("dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies ``base^(-2i/D)`` change for long contexts.

    ``linear`` divides all by ``factor`` (arXiv 2306.15595). ``dynamic`` raises the base with the length where
    that passes ``original_max_seqlen`` (NTK-aware). ``llama3`` divides slow ones, keeps fast ones, and goes
    over smoothly between ``low_freq_factor`` and ``high_freq_factor`` turns in the original context (arXiv
    2407.21783). ``yarn`` ramps between both over ``beta_slow`` to ``beta_fast`` turns and multiplies the
    table by ``attention_factor`` (arXiv 2309.00071). ``longrope`` divides each frequency by its own
    ``short_factor``, or by its ``long_factor`` beyond the original context (arXiv 2402.13753).

    ``dynamic`` and ``longrope`` follow the config's ``max_seqlen``, one length for every call: frequencies
    that followed the sequence at hand would turn keys in a decoding state otherwise than the queries to come.

    ``attention_factor`` is that of yarn and longrope; None derives it from ``factor`` (for yarn with
    ``mscale`` over ``mscale_all_dim`` where both are given).

    Raises:
        UsageError: a field that cannot be, or that the kind needs and lacks.
    """

    kind: Kind
    factor: float = 1.0
    original_max_seqlen: int = 0
    attention_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        kinds = get_args(Kind)
        if self.kind not in kinds:
            raise UsageError(
                f"rope_scaling: kind {self.kind!r} is none of {', '.join(kinds)}"
                f"{nearest(str(self.kind), kinds)}"
            )
        for name in ("short_factor", "long_factor"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not _positive(self.factor) or self.factor < 1:
            raise UsageError(f"rope_scaling: factor must be a number of at least 1, not {self.factor!r}")
        if self.kind in _NEEDS_ORIGINAL and not (
            isinstance(self.original_max_seqlen, int) and self.original_max_seqlen > 0
        ):
            raise UsageError(
                f"rope_scaling: kind {self.kind!r} needs original_max_seqlen, the length it was trained for, "
                f"not {self.original_max_seqlen!r}"
            )
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise UsageError(
                "rope_scaling: 0 < low_freq_factor < high_freq_factor is needed, "
                f"not {self.low_freq_factor} and {self.high_freq_factor}"
            )
        if self.kind == "yarn" and not 0 < self.beta_slow < self.beta_fast:
            raise UsageError(
                "rope_scaling: 0 < beta_slow < beta_fast is needed, "
                f"not {self.beta_slow} and {self.beta_fast}"
            )
        if self.attention_factor is not None and not _positive(self.attention_factor):
            raise UsageError(
                f"rope_scaling: attention_factor must be positive, not {self.attention_factor!r}"
            )
        if not all(_positive(x) for x in (*self.short_factor, *self.long_factor)):
            raise UsageError("rope_scaling: short_factor and long_factor must hold positive numbers")

    @property
    def follows_length(self) -> bool:
        """Whether the frequencies depend on how long the sequence is."""
        return self.kind in ("dynamic", "longrope")

    @property
    def table_factor(self) -> float:
        """What cosines and sines are multiplied by; the logits change by its square."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        if self.kind == "longrope":
            return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_seqlen))
        if self.mscale and self.mscale_all_dim:
            return _mscale(self.factor, self.mscale) / _mscale(self.factor, self.mscale_all_dim)
        return _mscale(self.factor, 1.0)

    def check_width(self, head_dim: int) -> None:
        """Refuse factors that are not one for each rotated pair.

        Raises:
            UsageError: longrope's lists do not hold ``head_dim // 2`` numbers.
        """
        if self.kind != "longrope":
            return
        for name in ("short_factor", "long_factor"):
            count = len(getattr(self, name))
            if count != head_dim // 2:
                raise UsageError(
                    f"rope_scaling: {name} needs {head_dim // 2} numbers, one for each pair, not {count}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain data; ``rope_scaling_from`` makes the same of it."""
        plain = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def rope_scaling_from(given: RopeScaling | Mapping[str, Any] | None) -> RopeScaling | None:
    """A scaling as it is, or made from a table of its fields.

    Raises:
        UsageError: an unknown field, or one that cannot be.
    """
    if given is None or isinstance(given, RopeScaling):
        return given
    if not isinstance(given, Mapping):
        raise UsageError(f"rope_scaling: a table with a kind is needed, not {given!r}")
    known = [item.name for item in dataclasses.fields(RopeScaling)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UsageError(f"rope_scaling: no field {unknown[0]!r}{nearest(unknown[0], known)}")
    if "kind" not in given:
        raise UsageError(f"rope_scaling: needs a kind, one of {', '.join(get_args(Kind))}")
    return RopeScaling(**given)


def rotary_frequencies(head_dim: int, base: float, scaling: RopeScaling | None, seqlen: int) -> list[float]:
    """``base^(-2i/D)`` of each of the D/2 pairs, scaled; ``seqlen`` is what dynamic kinds follow."""
    if scaling is not None and scaling.kind == "dynamic" and head_dim > 2:
        ratio = max(seqlen, scaling.original_max_seqlen) / scaling.original_max_seqlen
        base *= (scaling.factor * ratio - (scaling.factor - 1)) ** (head_dim / (head_dim - 2))
    plain = [base ** (-2.0 * i / head_dim) for i in range(head_dim // 2)]
    if scaling is None or scaling.kind == "dynamic":
        return plain
    if scaling.kind == "linear":
        return [frequency / scaling.factor for frequency in plain]
    if scaling.kind == "llama3":
        return [_llama3(frequency, scaling) for frequency in plain]
    if scaling.kind == "yarn":
        return _yarn(plain, head_dim, base, scaling)
    factors = scaling.long_factor if seqlen > scaling.original_max_seqlen else scaling.short_factor
    return [frequency / factor for frequency, factor in zip(plain, factors, strict=True)]


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    """Kept where it turns often in the original context, divided where it turns seldom, blended between."""
    turns = scaling.original_max_seqlen * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = min(1.0, max(0.0, (turns - low) / (high - low)))
    return frequency * (kept + (1 - kept) / scaling.factor)


def _yarn(plain: list[float], head_dim: int, base: float, scaling: RopeScaling) -> list[float]:
    """Pairs that turn ``beta_fast`` times are kept, from ``beta_slow`` on divided, with a ramp between."""

    def pair_turning(times: float) -> float:
        return head_dim * math.log(scaling.original_max_seqlen / (times * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = (last - first) or 0.001
    divided = [min(1.0, max(0.0, (i - first) / width)) for i in range(len(plain))]
    return [f * (1 - share + share / scaling.factor) for f, share in zip(plain, divided, strict=True)]


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0


def _positive(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
