"""How much of a case's time is work. In: stretches of code. Out: the seconds inside them, in its record."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from .record import Record


@contextmanager
def working(record: Record) -> Iterator[None]:
    """Add the seconds of the block, in which something is timed, counted or checked, to ``work_s``."""
    began = time.perf_counter()
    try:
        yield
    finally:
        if record.provenance is not None:
            before_s = record.provenance.work_s or 0.0
            record.provenance.work_s = before_s + time.perf_counter() - began
