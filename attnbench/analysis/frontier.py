"""The longest sequence that fits a memory, predicted and met. In: rows by facet, and the memory that each run
allowed. Out: `Frontier`s.

Peaks are sums of tensors, so they are ``a + b n + c n**2`` with no negative part; the parts are fitted to the
predicted peaks, which are known even where a case did not run, and solved for the length. Where peaks do not
follow (a window that is not yet full, a kernel that changes its tiles), nothing is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from attnbench.analysis.facets import Facet
from attnbench.analysis.metrics import PEAK_MEMORY
from attnbench.analysis.rows import CaseRow
from attnbench.analysis.series import Point, series_of

GIB = 2**30
MEMORIES_BYTES = (24 * GIB, 80 * GIB, 141 * 10**9)
"""Of cards that people have: a workstation's, an A100 or H100, an H200."""
TOLERANCE = 0.02
"""How far a peak may lie from the curve, of its value, for the curve to be believed beyond the lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """How far one curve gets."""

    facet: Facet
    """Of the first mask in the group; a curve under another one says so in its label."""
    label: str
    fits: tuple[tuple[int, int | None], ...]
    """``(memory in bytes, longest length whose predicted peak fits it)``; None where none does."""
    longest_met: int | None
    """The longest length that ran."""
    shortest_oom: int | None
    """The shortest length that did not for want of memory."""


def frontiers(
    groups: Mapping[Facet, list[CaseRow]], allowed_bytes: Mapping[str, Mapping[str, int]]
) -> Iterator[Frontier]:
    """Yield the frontier of every curve whose peaks follow from the length.

    ``allowed_bytes`` is what each run allowed, by kind of device.
    """
    for facet, rows in groups.items():
        for series in series_of(rows, PEAK_MEMORY):
            parts = _parts([point for point in series.points if point.expected])
            if parts is None:
                continue
            runs = {row.run: row.device for row in rows if row.run_label == series.run}
            own = [allowed_bytes.get(run, {}).get(device) for run, device in runs.items()]
            memories = sorted({*MEMORIES_BYTES, *(limit for limit in own if limit)})
            ooms = [point.seqlen for point in series.failed if point.status == "oom"]
            yield Frontier(
                facet=facet,
                label=series.label,
                fits=tuple((memory, longest_that_fits(parts, memory)) for memory in memories),
                longest_met=max((point.seqlen for point in series.measured), default=None),
                shortest_oom=min(ooms, default=None),
            )


def longest_that_fits(parts: Sequence[float], memory_bytes: int) -> int | None:
    """Return the largest n with ``a + b n + c n**2 <= memory_bytes``; None if not even 1 fits, or all do."""
    a, b, c = parts
    room = memory_bytes - a
    if room <= 0 or (b <= 0 and c <= 0):
        return None
    # The form without a difference of nearly equal numbers.
    longest = int(2 * room / (b + np.sqrt(b * b + 4 * c * room)))
    return longest or None


def _parts(points: Sequence[Point]) -> tuple[float, float, float] | None:
    """Return ``(a, b, c)`` of as many of the longest lengths as follow a curve; None below three."""
    while len({point.seqlen for point in points}) >= 3:
        parts = _fitted(points)
        if parts is not None:
            return parts
        points = points[1:]
    return None


def _fitted(points: Sequence[Point]) -> tuple[float, float, float] | None:
    lengths = np.array([point.seqlen for point in points], dtype=float)
    peaks = np.array([point.expected for point in points], dtype=float)
    scale = lengths.max()
    terms = (
        np.stack([np.ones_like(lengths), lengths / scale, (lengths / scale) ** 2], axis=1) / peaks[:, None]
    )
    found, _ = nnls(terms, np.ones_like(peaks))
    if np.abs(terms @ found - 1).max() > TOLERANCE:
        return None
    return float(found[0]), float(found[1] / scale), float(found[2] / scale**2)
