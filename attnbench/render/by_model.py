"""How a report of many panels is laid out: under the name of their model, and in tables with a row a panel.

In: panels. Out: their models, and which column of a table a curve has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from attnbench.analysis.facets import Facet, facet_title
from attnbench.analysis.series import Panel, series_label

OF_THE_MODEL = frozenset({"level", "architecture"})
NOT_OF_THE_MODEL = {field.name for field in fields(Facet)} - OF_THE_MODEL


def panels_by_model(
    panels: Sequence[Panel], untold: set[str]
) -> Iterator[tuple[str, set[str], Sequence[Panel]]]:
    """Yield ``(model, facet fields that titles leave out, panels)``.

    Without a name, all panels are yielded as one where there is a single model.
    """
    models: dict[str, list[Panel]] = {}
    for panel in panels:
        models.setdefault(facet_title(panel.facet, untold | NOT_OF_THE_MODEL), []).append(panel)
    if len(models) < 2:
        yield "", untold, panels
        return
    for model, members in models.items():
        yield model, untold | OF_THE_MODEL, members


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column of a table with a row a panel a curve has."""

    of_label: dict[str, str]
    notes: tuple[str, ...]
    """What the labels of the curves say besides: ``sliding-window: window 64``."""

    @property
    def titles(self) -> list[str]:
        """Return every column once."""
        return list(dict.fromkeys(self.of_label.values()))


def columns_of(panels: Sequence[Panel]) -> Columns:
    """Return a column for each implementation and its options, whatever its masks; for each label where a
    panel has several masks of one.
    """
    curves = {one.label: one for panel in panels for one in panel.series}
    short = {label: series_label(one.implementation, one.options, one.run) for label, one in curves.items()}
    if any(len({short[one.label] for one in panel.series}) < len(panel.series) for panel in panels):
        return Columns({label: label for label in curves}, ())
    masks: dict[str, dict[str, None]] = {}
    for label, one in curves.items():
        if label != short[label]:
            masks.setdefault(short[label], {})[one.mask] = None
    return Columns(short, tuple(f"{column}: {' or '.join(found)}" for column, found in masks.items()))
