"""The base of all masks: a predicate over absolute positions, and counts of it by enumeration.

In: positions (torch and numpy arrays both work). Out: what is visible, how many pairs, which tiles. Right for
every predicate and slow; ``bands.py`` has closed forms, and tests hold the two equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .ids import value_text

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
        """A short name with every parameter in it, for case ids: different masks have different ones."""
        parts = [self.name]
        for field in fields(self):
            value = getattr(self, field.name)
            text = value_text(value)
            # Dashes separate parameters: those of a text must not pass for one.
            text = text.replace("-", "%2D") if isinstance(value, str) else text
            parts.append(field.name.replace("_", "") + text)
        return "-".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data from which ``mask_from`` makes an equal mask."""
        return {"name": self.name, **{field.name: getattr(self, field.name) for field in fields(self)}}

    def _rows(
        self, seqlen_q: int, seqlen_k: int, query_start: int, b: int, h: int
    ) -> Iterator[tuple[int, NDArray[np.bool_]]]:
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

    def num_keys_seen(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> int:
        """Count the keys that at least one query sees."""
        return int(self.keys_seen(seqlen_q, seqlen_k, query_start, b, h).sum())

    def num_queries_seeing(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> int:
        """Count the queries that see at least one key."""
        return int(self.queries_seeing(seqlen_q, seqlen_k, query_start, b, h).sum())
