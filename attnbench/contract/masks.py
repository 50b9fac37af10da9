"""The masks by name: full, causal, sliding window, and whatever joins through an entry point. In: a name or a
table. Out: a mask.

A mask is its predicate ``visible(b, h, q_pos, k_pos)``, elementwise over index tensors (the shape of
FlexAttention's ``mask_mod``). Keys stand at 0…Sk-1; query i of a batch row stands at ``query_start + i``.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar

from .bands import BandMask
from .enumerated import Band, Mask, TileCount
from .errors import UsageError, nearest

__all__ = [
    "Band",
    "BandMask",
    "Causal",
    "Full",
    "Mask",
    "SlidingWindow",
    "TileCount",
    "mask_from",
    "mask_types",
]


@dataclass(frozen=True)
class Full(BandMask):
    """Every query sees every key."""

    name: ClassVar[str] = "full"

    def bounds(self) -> Band:
        """Unbounded on both sides."""
        return Band(None, None)


@dataclass(frozen=True)
class Causal(BandMask):
    """``k_pos <= q_pos``, aligned bottom-right unless a query start is given."""

    name: ClassVar[str] = "causal"

    def bounds(self) -> Band:
        """Unbounded to the left, nothing to the right of the query's own position."""
        return Band(None, 0)


@dataclass(frozen=True)
class SlidingWindow(BandMask):
    """The last ``window_size`` keys, the query's own included; per side if not causal.

    Causal: ``0 <= q_pos - k_pos < window_size``; not causal: ``|q_pos - k_pos| < window_size``.

    Raises:
        ValueError: ``window_size`` is not a positive integer.

    Source: Longformer, arXiv 2004.05150; Mistral 7B, arXiv 2310.06825.
    """

    window_size: int
    causal: bool = True
    name: ClassVar[str] = "sliding-window"

    def __post_init__(self) -> None:
        """Refuse a window that holds nothing."""
        if (
            isinstance(self.window_size, bool)
            or not isinstance(self.window_size, int)
            or self.window_size < 1
        ):
            raise UsageError(f"window_size must be a positive integer, not {self.window_size!r}")

    def bounds(self) -> Band:
        """``window_size - 1`` keys to the left, and as many to the right unless causal."""
        return Band(self.window_size - 1, 0 if self.causal else self.window_size - 1)

    @property
    def slug(self) -> str:
        """``window256``, or ``window256-bidirectional``."""
        return f"window{self.window_size}" + ("" if self.causal else "-bidirectional")


BUILT_IN: tuple[type[Mask], ...] = (Full, Causal, SlidingWindow)


@cache
def mask_types() -> dict[str, type[Mask]]:
    """Return every mask by name: the built-in ones and those of the entry-point group ``attnbench.masks``."""
    found = {kind.name: kind for kind in BUILT_IN}
    for entry in entry_points(group="attnbench.masks"):
        kind = entry.load()
        found.setdefault(kind.name, kind)
    return found


@cache
def _parameters(kind: type[Mask]) -> "tuple[list[str], list[Field[Any]]]":
    """Return the names of a mask's parameters, and those that have to be given."""
    parameters = fields(kind)
    required = [one for one in parameters if one.default is MISSING and one.default_factory is MISSING]
    return [one.name for one in parameters], required


def mask_from(spec: "Mask | str | Mapping[str, Any]") -> Mask:
    """Make a mask from a mask, a name, or a table such as ``{"name": "sliding-window", "window_size": 256}``.

    Raises:
        UsageError: neither of these, unknown name or parameter, or a parameter missing.
    """
    if isinstance(spec, Mask):
        return spec
    if not isinstance(spec, str | Mapping):
        raise UsageError(
            f"a mask is a Mask, a name, or a table such as {{'name': 'sliding-window', 'window_size': 256}}, "
            f"not {type(spec).__name__}; masks are predicates over positions, none is held as a matrix"
        )
    values = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = values.pop("name", None)
    kinds = mask_types()
    if name not in kinds:
        raise UsageError(
            f"unknown mask {name!r}{nearest(str(name), kinds)}; there are {', '.join(sorted(kinds))}"
        )
    known, required = _parameters(kinds[name])  # type: ignore[arg-type]  # mypy takes its instances' hash
    for key in values:
        if key not in known:
            wanted = ", ".join(known) or "no parameters"
            raise UsageError(
                f"mask {name!r} has no parameter {key!r}{nearest(key, known)}; it takes {wanted}"
            )
    lacking = [one.name for one in required if one.name not in values]
    if lacking:
        example = ", ".join(f"{one.name} = {256 if one.type in (int, 'int') else '…'}" for one in required)
        raise UsageError(f'mask {name!r} needs {", ".join(lacking)}, as {{ name = "{name}", {example} }}')
    try:
        return kinds[name](**values)
    except TypeError as error:
        raise UsageError(
            f"mask {name!r}: {str(error).replace('__init__()', '').split('.')[-1].strip()}"
        ) from None
