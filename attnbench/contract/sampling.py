"""Which programs of a kernel's launch stand for all of them. In: what an implementation knows of its grid. Out: plain data for a tracer.

Interpreting every program of a launch costs minutes at lengths where a few tell the rest: the bytes that a program requests are piecewise
linear in its tile. A sample names the pieces; the tracer runs the probes of each, holds them to a line and adds the piece up exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class NotLinear(RuntimeError):
    """A probe is off the line through its piece: the total of the sample would be wrong."""


class Probe(NamedTuple):
    """One program to run: its linear id in the launch grid (axis 0 fastest) and its index within its progression."""

    index: int
    program: int


@dataclass(frozen=True)
class Progression:
    """``count`` programs whose bytes form an arithmetic progression, and ``repeat`` such progressions in the launch (heads, batch rows).

    The first probe is the first program of the progression and the last probe the last one (the same if ``count`` is 1).
    """

    count: int
    repeat: int
    probes: tuple[Probe, ...]

    def total(self, bytes_of: Mapping[int, int]) -> int:
        """Add up all programs, given the bytes of the probes by program id.

        Raises:
            NotLinear: a probe does not lie on the line through the first and the last one.
        """
        first, last = bytes_of[self.probes[0].program], bytes_of[self.probes[-1].program]
        steps = max(1, self.count - 1)
        for probe in self.probes:
            if (bytes_of[probe.program] - first) * steps != (last - first) * probe.index:
                raise NotLinear(f"program {probe.program} moved {bytes_of[probe.program]} bytes, off the line of its tiles")
        return self.repeat * self.count * (first + last) // 2


class RowRange(NamedTuple):
    """Query rows ``start … stop-1`` of one batch row and head."""

    batch: int
    head: int
    start: int
    stop: int


@dataclass(frozen=True)
class ProgramSample:
    """Which programs to run, how they add up to the whole launch, and which query rows they compute; the other rows stay NaN."""

    progressions: tuple[Progression, ...]
    rows: tuple[RowRange, ...] = ()

    @property
    def programs(self) -> tuple[int, ...]:
        """Linear ids of the programs to run, sorted."""
        return tuple(sorted({probe.program for piece in self.progressions for probe in piece.probes}))

    @property
    def programs_total(self) -> int:
        """Programs that the sample stands for: those of the whole grid."""
        return sum(piece.count * piece.repeat for piece in self.progressions)

    def total(self, bytes_of: Mapping[int, int]) -> int:
        """Add up the whole launch, given the bytes of the programs that ran."""
        return sum(piece.total(bytes_of) for piece in self.progressions)
