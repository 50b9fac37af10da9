"""The table of attention's share of the time, for every form of report. In: `Report`. Out: rows of text, one
for each model and mode.
"""

from attnbench.analysis.metrics import LATENCY_SHARE
from attnbench.analysis.report import Report
from attnbench.analysis.series import Panel, Series
from attnbench.render.by_model import Columns, columns_of
from attnbench.render.model_words import change_words
from attnbench.render.numbers import ABSENT, format_seqlen
from attnbench.render.tables import PlainTable

TITLE = "Attention's share of the time, from the shortest length to the longest"


def share_tables(report: Report) -> list[PlainTable]:
    """Return the table, or none where no share of the time is known."""
    panels = next(group.drawn for group in report.metrics if group.metric is LATENCY_SHARE)
    if not panels:
        return []
    given = columns_of(panels)
    columns = (("Model", False), ("Lengths", True), *((title, True) for title in given.titles))
    rows = [_row(panel, given) for panel in panels]
    return [PlainTable(TITLE, columns, rows, "; ".join(given.notes)).trimmed()]


def _row(panel: Panel, columns: Columns) -> list[str]:
    ends = _ends([point.seqlen for series in panel.series for point in series.measured])
    cells = {columns.of_label[series.label]: _cell(series, ends) for series in panel.series}
    lengths = " to ".join(map(format_seqlen, dict.fromkeys(ends)))
    return [panel.title, lengths, *(cells.get(title, ABSENT) for title in columns.titles)]


def _cell(series: Series, ends: tuple[int, int]) -> str:
    if not series.measured:
        return ABSENT
    first, last = series.measured[0], series.measured[-1]
    own = _ends([first.seqlen, last.seqlen])
    text = change_words(first.value or 0.0, last.value or 0.0, single=own[0] == own[1])
    return text if own == ends else f"{text} ({' to '.join(map(format_seqlen, dict.fromkeys(own)))})"


def _ends(seqlens: list[int]) -> tuple[int, int]:
    return min(seqlens), max(seqlens)
