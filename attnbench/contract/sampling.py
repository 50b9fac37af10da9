"""Which programs of a kernel's launch stand for all of them. In: a kernel's grid. Out: plain data.

Interpreting every program of a launch takes minutes at lengths where a few tell the rest: the bytes that a
program requests are piecewise linear in its tile. A sample names the pieces; whoever traces the kernel runs
the probes of each, holds them to a line and adds the piece up exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class NotLinear(RuntimeError):
    """A probe is off the line through its piece, so the total of the sample would be wrong."""


class Probe(NamedTuple):
    """One program to run: its place in its progression, its linear id in the grid (axis 0 fastest)."""

    place: int
    program: int


@dataclass(frozen=True)
class Progression:
    """``count`` programs whose bytes form an arithmetic progression, ``repeat`` times in the launch.

    The first probe is the progression's first program, the last probe its last (the same if ``count`` is 1).
    """

    count: int
    repeat: int
    probes: tuple[Probe, ...]

    def total(self, bytes_of: Mapping[int, int]) -> int:
        """Add up all programs, given the bytes of the probes by program id.

        Raises:
            NotLinear: a probe does not lie on the line through the first and the last one.
        """
        first, last = (bytes_of[probe.program] for probe in (self.probes[0], self.probes[-1]))
        steps = max(1, self.count - 1)
        for place, program in self.probes:
            if (bytes_of[program] - first) * steps != (last - first) * place:
                raise NotLinear(
                    f"program {program} moved {bytes_of[program]} bytes: off the line of its neighbours"
                )
        return self.repeat * self.count * (first + last) // 2


class RowRange(NamedTuple):
    """Query rows ``start … stop-1`` of one batch row and head."""

    batch: int
    head: int
    start: int
    stop: int


@dataclass(frozen=True)
class ProgramSample:
    """Which programs to run, how they add up, and the query rows they compute; other rows stay NaN.

    ``rows`` is None for a kernel whose results are not of query rows (gradients of keys and values).
    """

    progressions: tuple[Progression, ...]
    rows: tuple[RowRange, ...] | None

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
