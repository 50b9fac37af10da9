"""Whether measured DRAM bytes can be right. In: what was measured, what is expected. Out: a judgement.

Reads are judged. Writes are not: lines that are still dirty when the window of the counters closes reach the
memory later, so that fewer bytes may be written than the call wrote.
"""

from dataclasses import dataclass

from .backend import ESTIMATE, DramBytes

TOLERANCE = 0.05
"""What the GPU moves for itself in the meantime, and what a cache still held of the call's inputs."""


@dataclass(frozen=True)
class Audit:
    """Measured bytes over expected ones; None where the backend does not tell the directions apart."""

    read_ratio: float | None
    write_ratio: float | None

    @property
    def agrees(self) -> bool:
        """Whether as much was read as expected."""
        return self.read_ratio is not None and abs(self.read_ratio - 1) <= TOLERANCE

    @property
    def exceeds(self) -> bool:
        """Whether at least as much was read as expected, where that is the least possible."""
        return self.read_ratio is not None and self.read_ratio >= 1 - TOLERANCE


def audit(measured: DramBytes, read_bytes: int, write_bytes: int) -> Audit:
    """Compare with the bytes that a call is expected to read and write."""
    return Audit(_ratio(measured.read, read_bytes), _ratio(measured.write, write_bytes))


def verdict(measured: DramBytes, compulsory_read_bytes: int | None) -> str | None:
    """Return the verdict of a record.

    Args:
        measured: what a backend found.
        compulsory_read_bytes: the least that has to come from memory; None if nobody knows.
    """
    if measured.note == ESTIMATE:
        return ESTIMATE
    if compulsory_read_bytes is None or measured.read is None:
        return None
    return "valid" if audit(measured, compulsory_read_bytes, 0).exceeds else "implausible"


def _ratio(measured: int | None, expected: int) -> float | None:
    return measured / expected if measured is not None and expected else None
