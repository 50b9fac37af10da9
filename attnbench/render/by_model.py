"""Panels by the model that they are about, for headings and for tables with a row a panel. In: panels. Out:
panels under the name of their model, and what their titles can leave out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields

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
