"""What part of a layer or a model is its attention's. In: rows by facet. Out: `ShareChange`s, from the
shortest to the longest length of each curve.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from attnbench.analysis.facets import Facet
from attnbench.analysis.metrics import LATENCY_SHARE, SHARES, Metric
from attnbench.analysis.rows import CaseRow
from attnbench.analysis.series import series_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareChange:
    """The share of one curve at its shortest and at its longest length; equal lengths if it has but one."""

    metric: Metric
    facet: Facet
    label: str
    seqlen_from: int
    seqlen_to: int
    first: float
    last: float
    doubts: tuple[str, ...] = ()
    """Verdicts that speak against either value."""


def share_changes(facets: Mapping[Facet, list[CaseRow]]) -> Iterator[ShareChange]:
    """Yield the change of each share of every curve that has one."""
    for facet, rows in facets.items():
        for metric in SHARES:
            for series in series_of(rows, metric):
                if series.measured:
                    start, end = series.measured[0], series.measured[-1]
                    yield ShareChange(
                        metric=metric,
                        facet=facet,
                        label=series.label,
                        seqlen_from=start.seqlen,
                        seqlen_to=end.seqlen,
                        first=start.value or 0.0,
                        last=end.value or 0.0,
                        doubts=tuple(sorted({*start.doubts, *end.doubts})),
                    )


def steepest(changes: Iterable[ShareChange]) -> ShareChange | None:
    """Return the change of the share of time that is largest; of a whole model rather than of one layer, of
    its forward pass rather than of another mode, and one that nothing speaks against rather than another.
    """
    timed = [one for one in changes if one.metric is LATENCY_SHARE and one.seqlen_from < one.seqlen_to]
    return max(
        timed,
        key=lambda one: (
            one.facet.level.startswith("model"),
            one.facet.mode == "fwd",
            not one.doubts,
            one.last - one.first,
        ),
        default=None,
    )
