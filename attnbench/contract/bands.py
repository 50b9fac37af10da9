"""Masks whose rows are one interval around the diagonal: counts in closed form. In: a band. Out: counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .enumerated import Band, Mask, TileCount

TILE_ROWS_AT_ONCE = 1 << 20


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
        full = visited = 0
        for row in range(0, -(-seqlen_q // block_q), TILE_ROWS_AT_ONCE):
            rows = range(row * block_q, min((row + TILE_ROWS_AT_ONCE) * block_q, seqlen_q), block_q)
            some_full, some_visited = self._tiles_in(
                rows, block_q, block_k, start, start + seqlen_q, seqlen_k
            )
            full, visited = full + some_full, visited + some_visited
        return TileCount(full, visited - full)

    def _tiles_in(
        self, rows: range, block_q: int, block_k: int, start: int, end: int, seqlen_k: int
    ) -> tuple[int, int]:
        """Count the full and the visited tiles of some rows of tiles; ``end``: behind the last query."""
        first = start + np.arange(rows.start, rows.stop, rows.step)
        last = np.minimum(first + block_q, end) - 1
        lo, hi = self.interval(first, last, seqlen_k)
        visited = np.where(hi > lo, -(-hi // block_k) - lo // block_k, 0)
        inner_lo, inner_hi = self.interval(last, first, seqlen_k)
        full = np.maximum(0, inner_hi // block_k - -(-inner_lo // block_k))
        full = np.where(last - first + 1 == block_q, full, 0)
        return int(full.sum()), int(visited.sum())

    def keys_seen(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> NDArray[np.bool_]:
        """Mark the keys ``[Sk]`` that at least one query sees.

        One interval, since the rows' intervals touch.
        """
        lo, hi = self._span(seqlen_q, seqlen_k, query_start)
        marked = np.zeros(seqlen_k, dtype=np.bool_)
        marked[lo:hi] = True
        return marked

    def num_keys_seen(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> int:
        """Count the keys that at least one query sees: the length of their interval."""
        lo, hi = self._span(seqlen_q, seqlen_k, query_start)
        return hi - lo

    def _span(self, seqlen_q: int, seqlen_k: int, query_start: int | None) -> tuple[int, int]:
        """Return ``[lo, hi)``: the keys that at least one query sees."""
        start = seqlen_k - seqlen_q if query_start is None else query_start
        if not seqlen_q:
            return 0, 0
        # Python's own numbers: numpy's would break the graph of a caller that is being compiled.
        left, right = self.bounds()
        lo = 0 if left is None else min(max(start - left, 0), seqlen_k)
        hi = seqlen_k if right is None else min(max(start + seqlen_q + right, 0), seqlen_k)
        return lo, max(lo, hi)

    def queries_seeing(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> NDArray[np.bool_]:
        """Mark the queries ``[Sq]`` whose interval is not empty."""
        start = seqlen_k - seqlen_q if query_start is None else query_start
        q_pos = start + np.arange(seqlen_q)
        lo, hi = self.interval(q_pos, q_pos, seqlen_k)
        return np.asarray(hi > lo)

    def num_queries_seeing(
        self, seqlen_q: int, seqlen_k: int, query_start: int | None = None, b: int = 0, h: int = 0
    ) -> int:
        """Count the queries from ``-right`` to ``seqlen_k - 1 + left``: those whose interval is not empty."""
        start = seqlen_k - seqlen_q if query_start is None else query_start
        left, right = self.bounds()
        if not seqlen_k or (left is not None and right is not None and left + right < 0):
            return 0
        first = start if right is None else max(start, -right)
        last = start + seqlen_q if left is None else min(start + seqlen_q, seqlen_k + left)
        return max(0, last - first)
