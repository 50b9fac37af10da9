"""What backends of DRAM bytes share. In: a job, a time limit. Out: bytes, or a reason to act on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from attnbench.device.requirements import Finding

if TYPE_CHECKING:
    from .job import Job


ESTIMATE = "estimate"
"""The note of what was not counted."""


@dataclass(frozen=True, kw_only=True)
class DramBytes:
    """Bytes of one call, None for what was not counted: a counter that is missing is not a count of 0."""

    total: int | None = None
    read: int | None = None
    write: int | None = None
    kernels: tuple[tuple[str, DramBytes], ...] = ()
    """The same of each kernel by its name, in the order of their launches, where they were told apart."""
    note: str = ""
    """What is particular about this measurement, in words."""

    def to_dict(self) -> dict[str, Any]:
        """Return what is known as plain data."""
        known = {"bytes": self.total, "read_bytes": self.read, "write_bytes": self.write}
        return {name: count for name, count in known.items() if count is not None}


class BackendError(Exception):
    """A backend that seemed to work did not; the reason is one line."""

    def __init__(self, reason: str, fix: str | None = None, *, lasting: bool = False) -> None:
        """Keep the reason.

        Args:
            reason: what went wrong.
            fix: the command that would help.
            lasting: the next case would meet the same, so that it need not be tried.
        """
        super().__init__(reason)
        self.fix, self.lasting = fix, lasting


class HungError(BackendError):
    """A backend did not come to an end."""


class Backend(Protocol):
    """One way to count: a module of this folder."""

    NAME: str

    def probe(self) -> Finding:
        """Say at no cost whether there is hope."""

    def measure(self, job: Job, timeout_s: float) -> DramBytes:
        """Count the bytes of the job's call, within the time.

        Raises:
            BackendError: it did not work.
        """


def summed(kernels: Sequence[tuple[str, DramBytes]]) -> DramBytes:
    """Return the sum over kernels; what one of them lacks the sum lacks too."""
    parts = [bytes_ for _, bytes_ in kernels]
    return completed(
        DramBytes(
            total=_sum([part.total for part in parts]),
            read=_sum([part.read for part in parts]),
            write=_sum([part.write for part in parts]),
            kernels=tuple(kernels),
        )
    )


def completed(found: DramBytes) -> DramBytes:
    """Return the same with the total of both directions, where it was not counted by itself."""
    if found.total is not None or found.read is None or found.write is None:
        return found
    return replace(found, total=found.read + found.write)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
