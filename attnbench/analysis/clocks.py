"""Whether a GPU ran a case as fast as it ran the others. In: rows. Out: the same rows, each with the usual SM
clock of its run, and ``throttled`` where its own was lower.

A record by itself shows a clock that moved while it was measured. One that was low from the first sample to
the last, on a card that a case before had heated, shows only beside the other records of the run.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from attnbench.analysis.rows import CaseRow

SLOW = 0.05
"""How far below the usual clock, as a part of it, speaks against a latency."""
LEAST_CASES = 3
"""Of fewer, none is usual."""
THROTTLED = "throttled"
VALID = "valid"


def judged_by_clock(rows: Sequence[CaseRow]) -> list[CaseRow]:
    """Return the rows in the same order. Usual is the median over the latencies of a run on one device."""
    clocks: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row.latency_ms is not None and row.sm_clock_mhz is not None:
            clocks[row.run, row.device].append(row.sm_clock_mhz)
    usual = {place: statistics.median(found) for place, found in clocks.items() if len(found) >= LEAST_CASES}
    return [_judged(row, usual.get((row.run, row.device))) for row in rows]


def below_usual(row: CaseRow) -> float:
    """Return by which part of the usual clock a row's own is too low; 0 where it is not."""
    own, usual = row.sm_clock_mhz, row.usual_sm_clock_mhz
    return 0.0 if own is None or usual is None or own >= (1 - SLOW) * usual else 1 - own / usual


def _judged(row: CaseRow, usual_mhz: float | None) -> CaseRow:
    if usual_mhz is None or row.latency_ms is None or row.sm_clock_mhz is None:
        return row
    beside = replace(row, usual_sm_clock_mhz=usual_mhz)
    if not below_usual(beside):
        return beside
    others = [word for word in row.latency_verdict if word not in (VALID, THROTTLED)]
    return replace(beside, latency_verdict=(*others, THROTTLED))
