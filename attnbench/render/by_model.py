"""How a report of many panels is laid out: under the name of their model, and in tables with a row a panel.

In: panels. Out: their models, and which column of a table a curve has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from attnbench.analysis.facets import Facet, facet_title
from attnbench.analysis.series import Panel

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

    @property
    def titles(self) -> list[str]:
        """Return every column once."""
        return list(dict.fromkeys(self.of_label.values()))

    @property
    def notes(self) -> list[str]:
        """Return what else the labels say of the curves of a column: ``sliding-window: window 64``."""
        more: dict[str, list[str]] = {}
        for label, column in self.of_label.items():
            if label != column:
                more.setdefault(column, []).append(label.removeprefix(column).strip(" ()"))
        return [f"{column}: {' or '.join(said)}" for column, said in more.items()]


def columns_of(panels: Sequence[Panel]) -> Columns:
    """Return a column for each implementation, or for each label where a panel has several curves of one."""
    alone = all(len({one.implementation for one in panel.series}) == len(panel.series) for panel in panels)
    return Columns(
        {one.label: one.implementation if alone else one.label for panel in panels for one in panel.series}
    )
