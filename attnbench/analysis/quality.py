"""What an approximation costs. In: rows of a trained model whose attention was exchanged. Out:
`Exchange`s: how well it still predicts, beside the exact attention.

Exact is softmax attention under the mask that the model was trained with: all positions that an architecture
lets a query see.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attnbench.analysis.facets import Facet
from attnbench.analysis.rows import CaseRow
from attnbench.analysis.series import series_label

EXACT_SEMANTICS = "softmax"
EXACT_MASKS = ("causal", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The model with one attention at one length."""

    row: CaseRow
    label: str
    """As in a legend: the implementation, its options, and its mask unless that is the exact one."""
    is_exact: bool
    added_loss: float | None
    """Loss above that of the exact attention at this length, in nats; None without either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One trained model under one set of circumstances: by length, exact attention first, then by loss."""

    facet: Facet
    """Its mask is empty: masks are among what is compared."""
    lines: tuple[Exchanged, ...]

    def at(self, seqlen: int) -> tuple[Exchanged, ...]:
        """Return the lines of one length."""
        return tuple(line for line in self.lines if line.row.seqlen == seqlen)

    @property
    def approximations(self) -> tuple[Exchanged, ...]:
        """Return the lines of all that is not exact."""
        return tuple(line for line in self.lines if not line.is_exact)


def exchanges(facets: Mapping[Facet, list[CaseRow]]) -> list[Exchange]:
    """Return what there is to compare: groups in which some attention is not the exact one."""
    alike: dict[Facet, list[CaseRow]] = {}
    for facet, rows in facets.items():
        judged = [row for row in rows if row.is_ok and row.perplexity is not None]
        alike.setdefault(replace(facet, mask=""), []).extend(judged)
    found = [Exchange(facet=facet, lines=tuple(_lines(rows))) for facet, rows in alike.items()]
    return [exchange for exchange in found if exchange.approximations]


def is_exact(row: CaseRow) -> bool:
    """Return whether the attention is the one that the model was trained with."""
    return row.semantics == EXACT_SEMANTICS and row.mask in EXACT_MASKS


def _label(row: CaseRow) -> str:
    mask = "" if row.mask in EXACT_MASKS else row.mask
    return series_label(row.implementation, row.options, mask, row.run_label)


def _lines(rows: list[CaseRow]) -> list[Exchanged]:
    yardsticks: dict[tuple[str, int], float] = {}
    for row in rows:
        if is_exact(row) and row.loss is not None:
            yardsticks.setdefault((row.run, row.seqlen), row.loss)
    lines = [
        Exchanged(
            row=row,
            label=_label(row),
            is_exact=is_exact(row),
            added_loss=None
            if row.loss is None or (row.run, row.seqlen) not in yardsticks
            else row.loss - yardsticks[row.run, row.seqlen],
        )
        for row in rows
    ]
    return sorted(lines, key=lambda line: (line.row.seqlen, not line.is_exact, line.row.perplexity or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCurve:
    """Perplexity by window of one implementation at one length, and that of the exact attention there."""

    implementation: str
    exact_implementation: str
    label: str
    seqlen: int
    exact: float
    points: tuple[tuple[int, float], ...]
    """``(window, perplexity)``, smallest window first."""


def window_curves(exchange: Exchange) -> list[WindowCurve]:
    """Return a curve for each length and implementation with two windows or more beside the exact one."""
    curves: dict[tuple[str, str, str, int], dict[int, float]] = {}
    exact = {(line.row.run, line.row.seqlen): line.row for line in reversed(exchange.lines) if line.is_exact}
    for line in exchange.lines:
        row = line.row
        if row.window is not None and row.perplexity is not None and (row.run, row.seqlen) in exact:
            name = series_label(row.implementation, row.options, row.run_label)
            key = row.run, row.implementation, name, row.seqlen
            curves.setdefault(key, {})[row.window] = row.perplexity
    return [
        WindowCurve(
            implementation=implementation,
            exact_implementation=exact[run, seqlen].implementation,
            label=name,
            seqlen=seqlen,
            exact=exact[run, seqlen].perplexity or 0.0,
            points=tuple(sorted(points.items())),
        )
        for (run, implementation, name, seqlen), points in curves.items()
        if len(points) > 1
    ]
