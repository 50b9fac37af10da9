"""Masks: predicates over absolute positions, with closed-form counts where there are some. In: positions.
Out: what is visible.

A mask is its predicate ``visible(b, h, q_pos, k_pos)``, elementwise over index tensors (the shape of
FlexAttention's ``mask_mod``; torch and numpy arrays both work). Keys stand at 0…Sk-1; query i of a batch row
stands at ``query_start + i``. Everything else here (intervals, pairs, tiles) is a count of that predicate: by
enumeration in general, in closed form for bands, and tests hold the two equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError, nearest

ENUMERATED_AT_ONCE = 1 << 22


class Band(NamedTuple):
    """Visible iff ``-left <= k_pos - q_pos <= right``; ``None`` means unbounded on that side."""

    left: int | None
    right: int | None


class TileCount(NamedTuple):
    """Tiles of a ``block_q × block_k`` grid that hold a visible pair.

    ``full`` ones have no hidden pair and no tail, ``partial`` do.
    """

    full: int
    partial: int

    @property
    def visited(self) -> int:
        """All tiles with at least one visible pair."""
        return self.full + self.partial


@dataclass(frozen=True)
class Mask:
    """Base of all masks. A subclass sets ``name`` and defines ``visible``.

    Every count follows from it by enumeration.
    """

    name: ClassVar[str] = ""
    uniform: ClassVar[bool] = True
    """Whether the predicate ignores ``b`` and ``h``; others are counted head by head."""

    def visible(self, b: Any, h: Any, q_pos: Any, k_pos: Any) -> Any:
        """Say elementwise whether the query at ``q_pos`` sees the key at ``k_pos`` (batch row ``b``, query
        head ``h``).
        """
        raise NotImplementedError

    def band(self) -> Band | None:
        """Return the mask as a band around the diagonal, or ``None`` if it is not one."""
        return None

    @property
    def slug(self) -> str:
        """A short name with every parameter in it, for case ids."""
        values = [f"{field.name.replace('_', '')}{getattr(self, field.name)}" for field in fields(self)]
        return "-".join([self.name, *values]).lower()

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data from which ``mask_from`` makes an equal mask."""
        return {"name": self.name, **{field.name: getattr(self, field.name) for field in fields(self)}}

    def _rows(self, seqlen_q: int, seqlen_k: int, query_start: int, b: int, h: int) -> Any:
        """Yield ``(first row, visible[rows, Sk])`` in blocks of bounded size."""
        k_pos = np.arange(seqlen_k)[None, :]
        step = max(1, ENUMERATED_AT_ONCE // max(1, seqlen_k))
        for first in range(0, seqlen_q, step):
            q_pos = query_start + np.arange(first, min(first + step, seqlen_q))[:, None]
            seen = np.broadcast_to(np.asarray(self.visible(b, h, q_pos, k_pos)), (q_pos.shape[0], seqlen_k))
            yield first, seen

    def row_intervals(self, q_pos: int, seqlen_k: int, b: int = 0, h: int = 0) -> tuple[tuple[int, int], ...]:
        """Return the keys that the query at ``q_pos`` sees as sorted, disjoint, half-open intervals within
        ``[0, seqlen_k)``.
        """
        for _, seen in self._rows(1, seqlen_k, q_pos, b, h):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], seen[0].astype(np.int8), [0]])))
            return tuple((int(lo), int(hi)) for lo, hi in edges.reshape(-1, 2))
        return ()

    def pairs(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> int:
        """Count the visible (query, key) pairs of one head.

        ``query_start`` defaults to ``seqlen_k - seqlen_q`` (bottom-right).
        """
        start = seqlen_k - seqlen_q if query_start is None else query_start
        return sum(int(np.count_nonzero(seen)) for _, seen in self._rows(seqlen_q, seqlen_k, start, b, h))

    def tiles(
        self,
        block_q: int,
        block_k: int,
        seqlen_q: int,
        seqlen_k: int,
        query_start: int | None = None,
        b: int = 0,
        h: int = 0,
    ) -> TileCount:
        """Count the tiles of one head that hold a visible pair, split into full and partial ones."""
        start = seqlen_k - seqlen_q if query_start is None else query_start
        full = partial = 0
        starts_k = np.arange(0, seqlen_k, block_k)
        for first in range(0, seqlen_q, block_q):
            rows = min(block_q, seqlen_q - first)
            seen = np.zeros(len(starts_k), dtype=np.int64)
            for _, block in self._rows(rows, seqlen_k, start + first, b, h):
                if seqlen_k:
                    seen += np.add.reduceat(block.sum(axis=0, dtype=np.int64), starts_k)
            complete = int(np.count_nonzero(seen == block_q * block_k))
            full += complete
            partial += int(np.count_nonzero(seen)) - complete
        return TileCount(full, partial)

    def keys_seen(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> NDArray[np.bool_]:
        """Mark the keys ``[Sk]`` that at least one query sees."""
        start = seqlen_k - seqlen_q if query_start is None else query_start
        marked = np.zeros(seqlen_k, dtype=np.bool_)
        for _, seen in self._rows(seqlen_q, seqlen_k, start, b, h):
            marked |= seen.any(axis=0)
        return marked

    def queries_seeing(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> NDArray[np.bool_]:
        """Mark the queries ``[Sq]`` that see at least one key."""
        start = seqlen_k - seqlen_q if query_start is None else query_start
        marked = np.zeros(seqlen_q, dtype=np.bool_)
        for first, seen in self._rows(seqlen_q, seqlen_k, start, b, h):
            marked[first : first + seen.shape[0]] = seen.any(axis=1)
        return marked


def _clamped_sum(first: int, count: int, upper: int) -> int:
    """Σ over t = first … first+count-1 of min(max(t, 0), upper), in closed form."""
    last = first + count
    lo, hi = max(first, 0), min(last, upper)
    ramp = (lo + hi - 1) * (hi - lo) // 2 if hi > lo else 0
    return ramp + upper * max(0, last - max(first, upper))


class BandMask(Mask):
    """A mask whose row is one interval around the diagonal; all counts in closed form from ``band()``."""

    def bounds(self) -> Band:
        """Return the band itself (never ``None`` here)."""
        raise NotImplementedError

    def band(self) -> Band:
        """Return the mask as a band around the diagonal."""
        return self.bounds()

    def visible(self, b: Any, h: Any, q_pos: Any, k_pos: Any) -> Any:
        """``-left <= k_pos - q_pos <= right``, as comparisons that broadcast (no matrix of distances)."""
        left, right = self.bounds()
        seen = (q_pos == q_pos) & (k_pos == k_pos) if left is None and right is None else None
        if right is not None:
            seen = k_pos <= q_pos + right
        if left is not None:
            near = k_pos >= q_pos - left
            seen = near if seen is None else seen & near
        return seen

    def interval(self, first_q: Any, last_q: Any, seqlen_k: int) -> tuple[Any, Any]:
        """Return ``[lo, hi)``: every key that a query in ``first_q … last_q`` sees.

        Elementwise over arrays.
        """
        left, right = self.bounds()
        lo = first_q * 0 if left is None else np.clip(first_q - left, 0, seqlen_k)
        hi = last_q * 0 + seqlen_k if right is None else np.clip(last_q + right + 1, 0, seqlen_k)
        return lo, np.maximum(lo, hi)

    def row_intervals(self, q_pos: int, seqlen_k: int, b: int = 0, h: int = 0) -> tuple[tuple[int, int], ...]:
        """Return the one interval of keys that the query at ``q_pos`` sees, or none."""
        lo, hi = self.interval(q_pos, q_pos, seqlen_k)
        return ((int(lo), int(hi)),) if hi > lo else ()

    def pairs(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> int:
        """Count the visible pairs of one head: a difference of two sums of clamped ramps."""
        start = seqlen_k - seqlen_q if query_start is None else query_start
        left, right = self.bounds()
        upper = seqlen_k * seqlen_q if right is None else _clamped_sum(start + right + 1, seqlen_q, seqlen_k)
        lower = 0 if left is None else _clamped_sum(start - left, seqlen_q, seqlen_k)
        return upper - lower

    def tiles(
        self,
        block_q: int,
        block_k: int,
        seqlen_q: int,
        seqlen_k: int,
        query_start: int | None = None,
        b: int = 0,
        h: int = 0,
    ) -> TileCount:
        """Count the tiles of one head from the interval each row of tiles sees and the one all of its
        queries see.
        """
        start = seqlen_k - seqlen_q if query_start is None else query_start
        if seqlen_q == 0 or seqlen_k == 0:
            return TileCount(0, 0)
        first = start + np.arange(0, seqlen_q, block_q)
        last = np.minimum(first + block_q, start + seqlen_q) - 1
        lo, hi = self.interval(first, last, seqlen_k)
        visited = np.where(hi > lo, -(-hi // block_k) - lo // block_k, 0)
        inner_lo, inner_hi = self.interval(last, first, seqlen_k)
        full = np.maximum(0, inner_hi // block_k - -(-inner_lo // block_k))
        full = np.where(last - first + 1 == block_q, full, 0)
        return TileCount(int(full.sum()), int((visited - full).sum()))

    def keys_seen(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> NDArray[np.bool_]:
        """Mark the keys ``[Sk]`` that at least one query sees.

        One interval, since the rows' intervals touch.
        """
        start = seqlen_k - seqlen_q if query_start is None else query_start
        marked = np.zeros(seqlen_k, dtype=np.bool_)
        if seqlen_q:
            lo, hi = self.interval(start, start + seqlen_q - 1, seqlen_k)
            marked[int(lo) : int(hi)] = True
        return marked

    def queries_seeing(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> NDArray[np.bool_]:
        """Mark the queries ``[Sq]`` whose interval is not empty."""
        start = seqlen_k - seqlen_q if query_start is None else query_start
        q_pos = start + np.arange(seqlen_q)
        lo, hi = self.interval(q_pos, q_pos, seqlen_k)
        return np.asarray(hi > lo)


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


def mask_from(spec: "Mask | str | Mapping[str, Any]") -> Mask:
    """Make a mask from a mask, a name, or a table such as ``{"name": "sliding-window", "window_size": 256}``.

    Raises:
        UsageError: unknown name or parameter, or a parameter missing.
    """
    if isinstance(spec, Mask):
        return spec
    values = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = values.pop("name", None)
    kinds = mask_types()
    if name not in kinds:
        raise UsageError(
            f"unknown mask {name!r}{nearest(str(name), kinds)}; there are {', '.join(sorted(kinds))}"
        )
    known = [field.name for field in fields(kinds[name])]
    for key in values:
        if key not in known:
            wanted = ", ".join(known) or "no parameters"
            raise UsageError(
                f"mask {name!r} has no parameter {key!r}{nearest(key, known)}; it takes {wanted}"
            )
    try:
        return kinds[name](**values)
    except TypeError as error:
        raise UsageError(
            f"mask {name!r}: {str(error).replace('__init__()', '').split('.')[-1].strip()}"
        ) from None
