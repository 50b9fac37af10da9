"""Bytes that cross the memory's pins behind an L2 cache. In: accesses. Out: bytes by capacity of the cache.

The model: sectors of 32 bytes, any of which can lie anywhere in the cache; a new one takes the place of the
least recently used. A load fetches what is missing. A store fetches only sectors that it covers in part;
what it wrote goes to memory when it is evicted, or at the end. The cache is cold before the call.

Least recently used is a stack algorithm (Mattson et al., IBM Systems Journal 9(2), 1970): what a cache holds,
a larger one holds too. So an access has a *stack distance*, the bytes of different sectors touched since the
last access to its own, itself included, and it hits exactly the caches that hold as many bytes. One pass
gives the traffic of every capacity.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .accesses import Access

SECTOR_BYTES = 32
"""What NVIDIA's caches fetch: a line of 128 bytes has four sectors, each valid or not by itself."""

Integers = NDArray[np.int64]
_NEVER = np.iinfo(np.int64).max
"""The distance of a first access: no cache hits."""


class Touches(NamedTuple):
    """A trace in pieces: runs of sectors that every access touches as a whole or not at all."""

    piece: Integers
    """By time: which piece was touched."""
    size_bytes: Integers
    """By time: how large it is."""
    fetches: NDArray[np.bool_]
    """By time: whether it comes from memory if the cache lacks it."""
    writes: NDArray[np.bool_]


class _Tally:
    """Bytes of events by the capacity that each of them needs so as not to happen."""

    def __init__(self, distances: Integers, size_bytes: Integers) -> None:
        order = np.argsort(distances)
        self.distances = distances[order]
        self._beyond = np.append(np.cumsum(size_bytes[order][::-1])[::-1], 0)

    def beyond(self, capacity_bytes: int) -> int:
        return int(self._beyond[np.searchsorted(self.distances, capacity_bytes, side="right")])


class DramCurve:
    """Predicted traffic of a trace by the capacity of the cache; never rises as the cache grows."""

    def __init__(self, touches: Touches) -> None:
        """Compute all stack distances."""
        by_piece = np.argsort(touches.piece, kind="stable")
        begins = np.diff(touches.piece[by_piece], prepend=-1) != 0
        previous = np.full(by_piece.size, -1)
        previous[by_piece[1:]] = np.where(begins[1:], -1, by_piece[:-1])
        distances = stack_distances(previous, touches.size_bytes)
        self._read = _Tally(distances[touches.fetches], touches.size_bytes[touches.fetches])
        # A sector is written back once for every stay in the cache in which it was written: a write adds one
        # unless all accesses since the one before it hit, that is, unless the largest distance fits.
        wrote = touches.writes[by_piece]
        spans = np.flatnonzero(begins | np.append(True, wrote)[:-1])
        largest = np.maximum.reduceat(distances[by_piece], spans) if spans.size else spans
        ends = np.append(spans[1:], by_piece.size)[: spans.size] - 1
        ends_written = wrote[ends]
        self._written = _Tally(largest[ends_written], touches.size_bytes[by_piece[ends[ends_written]]])

    def read_bytes(self, capacity_bytes: int) -> int:
        """Bytes fetched from memory."""
        return self._read.beyond(capacity_bytes)

    def write_bytes(self, capacity_bytes: int) -> int:
        """Bytes written back to memory."""
        return self._written.beyond(capacity_bytes)

    def dram_bytes(self, capacity_bytes: int) -> int:
        """Both."""
        return self.read_bytes(capacity_bytes) + self.write_bytes(capacity_bytes)

    def capacities(self) -> list[int]:
        """Return every capacity from which on there is less traffic than below it, ascending.

        From the last one on, each sector is fetched and written back once at most.
        """
        both = np.unique(np.concatenate([self._read.distances, self._written.distances]))
        return [int(capacity) for capacity in both[both < _NEVER]]


def dram_curve(accesses: Sequence[Access], *, sector_bytes: int = SECTOR_BYTES) -> DramCurve:
    """Return the traffic of accesses, made in this order, for every capacity."""
    return DramCurve(touches_of(accesses, sector_bytes))


def touches_of(accesses: Sequence[Access], sector_bytes: int) -> Touches:
    """Cut accesses into whole sectors and these into pieces, by ascending address within an access.

    A piece has one stack distance: between two accesses to it, each of its sectors sees all the others.
    """
    counts = [len(access.ranges) for access in accesses]
    ranges = np.concatenate([np.empty((0, 2), np.int64), *(access.ranges for access in accesses)])
    first, last = ranges[:, 0] // sector_bytes, -(-ranges[:, 1] // sector_bytes)
    whole_from = -(-ranges[:, 0] // sector_bytes)
    whole_to = np.maximum(whole_from, ranges[:, 1] // sector_bytes)
    # A range is a sector in part, whole sectors, and a sector in part; any of them may be empty.
    edges = np.stack([first, np.minimum(whole_from, last), whole_to, last], axis=1)
    start, stop = edges[:, :-1].ravel(), edges[:, 1:].ravel()
    owner = np.repeat(np.arange(len(accesses)), 3 * np.array(counts, dtype=np.int64))
    in_part = np.tile([True, False, True], len(ranges))
    # Two ranges of one access may share a sector, which is touched once.
    same = np.append(False, owner[1:] == owner[:-1])[: owner.size]
    start = np.where(same, np.maximum(start, np.roll(stop, 1)), start)
    kept = start < stop
    start, stop, owner, in_part = start[kept], stop[kept], owner[kept], in_part[kept]

    cuts = np.unique(np.concatenate([start, stop]))
    lowest, beyond = np.searchsorted(cuts, start), np.searchsorted(cuts, stop)
    pieces = beyond - lowest
    piece = np.arange(pieces.sum()) + np.repeat(lowest - np.cumsum(pieces) + pieces, pieces)
    loads = np.array([access.loads for access in accesses], dtype=np.bool_)
    stores = np.array([access.stores for access in accesses], dtype=np.bool_)
    return Touches(
        piece=piece,
        size_bytes=np.diff(cuts)[piece] * sector_bytes,
        fetches=np.repeat(loads[owner] | in_part, pieces),
        writes=np.repeat(stores[owner], pieces),
    )


def stack_distances(previous: Integers, size_bytes: Integers) -> Integers:
    """Return the stack distance of each touch, in bytes; largest where it is the first of its piece.

    Args:
        previous: by time, when the same piece was touched last; -1 at its first touch.
        size_bytes: by time, how large the piece is.

    Touches since ``previous[t]`` are of different pieces where their own previous touch is not later than
    ``previous[t]``: the distance is what all touches before ``t`` with such a one add up to, less those up to
    ``previous[t]``, which all have. The first sum counts smaller keys among earlier elements, half by half of
    ever smaller blocks (as a merge sort would), O(n log n) in whole arrays.
    """
    times = previous.size
    before = np.append(0, np.cumsum(size_bytes))
    order = np.argsort(previous, kind="stable")
    earlier = np.zeros(times, dtype=np.int64)
    position = np.arange(times)
    for level in reversed(range(max(0, times - 1).bit_length())):
        # `order` holds blocks of 2^(level+1) touches that follow each other in time, each sorted by key.
        late = (order >> level) & 1
        begins = position >> (level + 1) << (level + 1)
        sums = np.append(0, np.cumsum(np.where(late, 0, size_bytes[order])))
        earlier[order] += late * (sums[position] - sums[begins])
        lates = np.append(0, np.cumsum(late))
        lates_inside = lates[position] - lates[begins]
        target = begins + np.where(late, (1 << level) + lates_inside, position - begins - lates_inside)
        split = np.empty_like(order)
        split[target] = order
        order = split
    distances = earlier - before[previous + 1] + size_bytes
    return np.where(previous < 0, _NEVER, distances)
