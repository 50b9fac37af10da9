"""Rotary settings of Hugging Face's configs, old and new. In: settings. Out: a base and a scaling."""

from collections.abc import Mapping
from typing import Any

from attnbench.contract.errors import UsageError, nearest
from attnbench.model.rope import Kind, RopeScaling

from .sources import Settings

_OWN: dict[Kind, tuple[str, ...]] = {
    "linear": (),
    "dynamic": (),
    "llama3": ("low_freq_factor", "high_freq_factor"),
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("attention_factor", "short_factor", "long_factor"),
}
"""The parameters of each kind, which ``RopeScaling`` calls by the same names."""

_COMMON = (
    "rope_theta",
    "rope_type",
    "type",
    "factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
)


def rotary_settings(settings: Settings) -> tuple[float, RopeScaling | None]:
    """The base of the frequencies, and how they are scaled.

    transformers 5 keeps all of it in ``rope_parameters``; older ones kept ``rope_theta`` beside
    ``rope_scaling``, whose kind was once called ``type``.

    Raises:
        UsageError: a kind or a parameter that is not built here, or several kinds for different layers.
    """
    none: Mapping[str, Any] = {}
    given = settings.get("rope_parameters", none) or settings.get("rope_scaling", none)
    where = f"{settings.where}: rope_parameters"
    if not isinstance(given, Mapping) or any(isinstance(value, Mapping) for value in given.values()):
        raise UsageError(f"{where}: one table for all layers is needed, not {given!r}")
    base = _number(where, "rope_theta", given.get("rope_theta") or settings.get("rope_theta", 10000.0))
    rotated = given.get("partial_rotary_factor") or settings.get("partial_rotary_factor", 1.0)
    if rotated != 1.0:
        raise UsageError(
            f"{where}: partial_rotary_factor {rotated} cannot be carried over: whole heads are rotated"
        )
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind == "default":
        return base, None
    if not isinstance(kind, str) or kind not in _OWN:
        raise UsageError(
            f"{where}: rope_type {kind!r} is none of default, {', '.join(_OWN)}{nearest(str(kind), _OWN)}"
        )
    present = {name: value for name, value in given.items() if value is not None}
    unknown = sorted(set(present) - set(_COMMON) - set(_OWN[kind]))
    if unknown:
        raise UsageError(
            f"{where}: {unknown[0]!r} is no parameter of {kind!r}{nearest(unknown[0], _OWN[kind])}"
        )
    own = {name: present[name] for name in _OWN[kind] if name in present}
    if kind in ("linear", "dynamic"):
        original = settings.need("max_position_embeddings")
    else:
        original = _original_length(settings, present)
    factor = present.get("factor")
    if factor is None:
        longest = _number(where, "max_position_embeddings", settings.need("max_position_embeddings"))
        factor = longest / _number(where, "original_max_position_embeddings", original)
    factor = _number(where, "factor", factor)
    return base, RopeScaling(kind=kind, factor=factor, original_max_seqlen=original, **own)


def _number(where: str, name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise UsageError(f"{where}: {name} must be a positive number, not {value!r}")
    return float(value)


def _original_length(settings: Settings, given: Mapping[str, Any]) -> int:
    """The trained length: beside the table, in it, or the longest that the config names."""
    longest = settings.need("max_position_embeddings")
    inside: int = given.get("original_max_position_embeddings", longest)
    return settings.get("original_max_position_embeddings", inside)
