"""Which bytes the programs of a launch touch, and in which order. In: addresses. Out: accesses, interleaved.

An access is kept as ranges of bytes, since the elements of a tile lie beside each other: one range where rows
follow each other in memory, one a row where they don't.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Access(NamedTuple):
    """One load, store or atomic operation (both) of one program.

    ``ranges`` ``[n, 2]``: first byte and the one after the last, disjoint and ascending.
    """

    ranges: NDArray[np.int64]
    loads: bool
    stores: bool


def byte_ranges(addresses: NDArray[Any], size_bytes: int) -> NDArray[np.int64]:
    """Return the bytes of elements of ``size_bytes`` at ``addresses`` as ranges; an element that is addressed
    twice counts once, as the threads of one access share what they fetch.
    """
    found = np.sort(addresses.astype(np.int64), axis=None)
    if not found.size:
        return np.empty((0, 2), dtype=np.int64)
    gaps = np.flatnonzero(np.diff(found) > size_bytes)
    first, last = np.append(0, gaps + 1), np.append(gaps, found.size - 1)
    return np.stack([found[first], found[last] + size_bytes], axis=1)


def side_by_side(programs: Sequence[Sequence[Access]], resident_programs: int) -> list[Access]:
    """Return the accesses of one launch in the order in which its programs make them.

    ``resident_programs`` run at a time, each one access a turn; where one ends, the next begins, in the order
    of the launch.

    Raises:
        ValueError: nothing can run.
    """
    if resident_programs < 1:
        raise ValueError(f"resident_programs: 1 or more is needed, not {resident_programs}")
    free = [(0, slot) for slot in range(min(resident_programs, max(1, len(programs))))]
    heapify(free)
    begins = []
    for accesses in programs:
        turn, slot = heappop(free)
        begins.append((turn, slot))
        heappush(free, (turn + len(accesses), slot))
    turns = [
        (turn + step, slot, access)
        for (turn, slot), accesses in zip(begins, programs, strict=True)
        for step, access in enumerate(accesses)
    ]
    return [access for _, _, access in sorted(turns, key=lambda each: each[:2])]
