"""What a traced call launched. In: what each program did. Out: bytes and accesses, of launch and call."""

from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from attnbench.contract.sampling import ProgramSample

from .accesses import Access, side_by_side


@dataclass
class Launch:
    """One kernel launch: its true grid, and by linear program id (axis 0 fastest) the bytes loaded and stored
    and, if they are kept, the accesses.
    """

    kernel: str
    grid: tuple[int, int, int]
    sample: ProgramSample | None = None
    chosen: tuple[int, ...] = ()
    loads: dict[int, int] = field(default_factory=dict)
    stores: dict[int, int] = field(default_factory=dict)
    accesses: dict[int, list[Access]] = field(default_factory=dict)

    @property
    def programs_total(self) -> int:
        """Programs of the true grid."""
        return prod(self.grid)

    @property
    def programs_run(self) -> int:
        """Programs that were interpreted."""
        return self.programs_total if self.sample is None else len(self.chosen)

    @property
    def load_bytes(self) -> int:
        """Bytes that the whole launch loads."""
        return self._total(self.loads)

    @property
    def store_bytes(self) -> int:
        """Bytes that the whole launch stores."""
        return self._total(self.stores)

    def _total(self, bytes_of: dict[int, int]) -> int:
        if self.sample is None:
            return sum(bytes_of.values())
        return self.sample.total({program: bytes_of.get(program, 0) for program in self.chosen})


@dataclass
class KernelTrace:
    """All launches of a traced call, and those that prepared it."""

    launches: list[Launch] = field(default_factory=list)
    preparing: list[Launch] = field(default_factory=list)

    def begin_call(self) -> None:
        """What was launched so far has prepared the call, and is no part of it."""
        self.preparing += self.launches
        self.launches = []

    @property
    def load_bytes(self) -> int:
        """Bytes that the kernels load."""
        return sum(launch.load_bytes for launch in self.launches)

    @property
    def store_bytes(self) -> int:
        """Bytes that the kernels store."""
        return sum(launch.store_bytes for launch in self.launches)

    @property
    def requested_bytes(self) -> int:
        """Bytes that the kernels load and store."""
        return self.load_bytes + self.store_bytes

    @property
    def programs_run(self) -> int:
        """Programs that were interpreted, over all launches."""
        return sum(launch.programs_run for launch in self.launches)

    @property
    def programs_total(self) -> int:
        """Programs of the true grids, over all launches."""
        return sum(launch.programs_total for launch in self.launches)

    def accesses(self, resident_programs: int) -> list[Access]:
        """Return what the call touches, launch after launch, if accesses were kept and nothing was sampled.

        ``resident_programs`` of a launch run side by side (``side_by_side``).
        """
        return [
            access
            for launch in self.launches
            for access in side_by_side(
                [launch.accesses.get(program, []) for program in range(launch.programs_total)],
                resident_programs,
            )
        ]

    def computed_rows(self, batch: int, num_heads: int, seqlen_q: int) -> NDArray[np.bool_]:
        """Mark the query rows ``[B, H, Sq]`` that every launch computed: all, unless one was sampled."""
        computed = np.ones((batch, num_heads, seqlen_q), dtype=np.bool_)
        for launch in (*self.preparing, *self.launches):
            if launch.sample is not None and launch.sample.rows is not None:
                reached = np.zeros_like(computed)
                for row in launch.sample.rows:
                    reached[row.batch, row.head, row.start : row.stop] = True
                computed &= reached
        return computed
