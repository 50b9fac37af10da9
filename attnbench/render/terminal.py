"""The answer at the end of a run, for a terminal. In: a run. Out: plain text of at most ``width`` columns."""

import textwrap
from collections.abc import Sequence

from attnbench.analysis.facets import facet_title
from attnbench.analysis.metrics import ERROR, METRICS, Metric
from attnbench.analysis.report import Report, build_report
from attnbench.analysis.series import Panel, Point, Series
from attnbench.analysis.summary import common_length
from attnbench.render.by_model import columns_of, panels_by_model
from attnbench.render.exchange_table import TITLE as EXCHANGE
from attnbench.render.exchange_table import exchange_tables
from attnbench.render.model_words import quality_finding, share_finding
from attnbench.render.numbers import format_seqlen, format_value, plural, with_units
from attnbench.render.tables import PlainTable
from attnbench.render.words import (
    accuracy_sentence,
    answers,
    clock_sentence,
    constants_words,
    doubt_sentence,
    tally_words,
)
from attnbench.run.store import Run

SHOWN = {
    "latency": "latency",
    "peak-memory": "memory",
    "state-memory": "memory",
    "latency-share": "share",
}
"""Quantities with tables of their own, and what a suite calls them.

A suite that asks for none of them shows errors.
"""
SHORT_STATUS = {"unsupported": "unsup.", "incorrect": "wrong"}
LEAST_LABEL_WIDTH = 20
GAP = 2
MOST_TABLES = 6
"""Tables of one quantity; where there are more, one table has a row for each, or the report has the rest."""
MOST_NAMED = 3
"""Kinds of cases without a value that are named one by one."""


def render_summary(run: Run, width: int = 80) -> str:
    """Return tables of latency and peak memory, implementations by lengths, then the answer in words."""
    report = build_report([run])
    lines = [f"{report.title}: {tally_words(report.summary)}"]
    if constants_words(report):
        lines.append(f"All cases: {constants_words(report)}")
    asked = _asked(run)
    shown = [key for key, name in SHOWN.items() if name in asked] or [ERROR.key]
    for metric in METRICS:
        if metric.key in shown:
            lines += _metric_lines(report, metric, width)
    for table in exchange_tables(report) if "quality" in asked else ():
        lines += ["", f"{EXCHANGE}: {table.title}", *_plain_lines(table, width)]
    lines += ["", *_closing(report)]
    return "\n".join(
        part for line in lines for part in (_wrapped(line, width) if len(line) > width else [line])
    )


def _asked(run: Run) -> set[str]:
    """Return the quantities that the run's suite asks for; all of them if the run does not say."""
    measure = run.meta.get("measure")
    metrics = measure.get("metrics") if isinstance(measure, dict) else None
    return set(metrics) if isinstance(metrics, list) and metrics else {*SHOWN.values(), "quality"}


def _metric_lines(report: Report, metric: Metric, width: int) -> list[str]:
    group = next(group for group in report.metrics if group.metric is metric)
    lines: list[str] = []
    if group.drawn and len(report.groups) > MOST_TABLES:
        matrix = _matrix(group.drawn, report.untold, metric, width)
        if max(map(len, matrix)) <= width:
            return ["", f"{metric.title} at the longest length that most reach", *matrix]
    for panel in group.drawn[:MOST_TABLES]:
        lines += ["", f"{metric.title}: {panel.title}", *_grid(panel, width)]
    if len(group.drawn) > MOST_TABLES:
        lines += ["", f"{metric.title}: {plural(len(group.drawn) - MOST_TABLES, 'more table')} in the report"]
    if len(group.empty) > MOST_NAMED:
        lines += ["", f"{metric.title}: none for {len(group.empty)} kinds of cases"]
    elif group.empty:
        lines += ["", f"{metric.title}: none for {'; '.join(panel.title for panel in group.empty)}"]
    return lines


def _matrix(panels: Sequence[Panel], untold: set[str], metric: Metric, width: int) -> list[str]:
    """Return a line a panel under the name of its model, with a column for each curve; those with fewest
    values give way where the width is too small.
    """
    given = columns_of(panels)
    columns = given.titles
    rows: list[tuple[str, list[str]]] = [("", columns)]
    for model, told_above, members in panels_by_model(panels, untold):
        rows += [(model, [])] if model else []
        for panel in members:
            seqlen = common_length(panel.series)
            at = {
                given.of_label[one.label]: _cell(point, metric)
                for one in panel.series
                for point in one.points
                if point.seqlen == seqlen
            }
            said = facet_title(panel.facet, told_above | {"mode"})
            length = "" if seqlen is None else format_seqlen(seqlen)
            title = ", ".join(filter(None, (panel.facet.mode, said, length)))
            rows.append((f"  {title}", [at.get(column, "") for column in columns]))
    label_width = max(len(title) for title, cells in rows if cells)
    widths = [max(len(cells[place]) for _, cells in rows if cells) + GAP for place in range(len(columns))]
    shown = sorted(
        range(len(columns)), key=lambda place: -sum(bool(cells[place]) for _, cells in rows if cells)
    )
    while len(shown) > 1 and label_width + sum(widths[place] for place in shown) > width:
        shown.pop()
    lines = [
        (title.ljust(label_width) + "".join(cells[place].rjust(widths[place]) for place in sorted(shown)))
        if cells
        else title
        for title, cells in rows
    ]
    hidden = [column for place, column in enumerate(columns) if place not in shown]
    return [
        *map(str.rstrip, lines),
        *given.notes,
        *([f"({', '.join(hidden)}: in the report)"] if hidden else []),
    ]


def _grid(panel: Panel, width: int) -> list[str]:
    """Return a header of lengths and a line a series; the shortest lengths give way where the width is too
    small.
    """
    seqlens = sorted({point.seqlen for series in panel.series for point in series.points})
    cells = {
        series.label: {point.seqlen: _cell(point, panel.metric) for point in series.points}
        for series in panel.series
    }
    column = max([9, *(len(text) + 2 for texts in cells.values() for text in texts.values())])
    wanted, left = max(len(label) for label in cells), width - column * len(seqlens)
    label_width = max(LEAST_LABEL_WIDTH, min(wanted, left))
    room = max(1, (width - label_width) // column)
    shown, hidden = seqlens[-room:], seqlens[:-room]
    lines = [_line("", [format_seqlen(seqlen) for seqlen in shown], label_width, column)]
    lines += [
        _line(label, [texts.get(seqlen, "") for seqlen in shown], label_width, column)
        for label, texts in cells.items()
    ]
    if hidden:
        lines.append(f"(shorter lengths are in the report: {', '.join(map(format_seqlen, hidden))})")
    return lines + _footnotes(panel.series)


def _line(label: str, texts: Sequence[str], label_width: int, column: int) -> str:
    fitted = label if len(label) <= label_width else label[: label_width - 2] + ".."
    return (fitted.ljust(label_width) + "".join(text.rjust(column) for text in texts)).rstrip()


def _cell(point: Point, metric: Metric) -> str:
    if point.failed:
        return SHORT_STATUS.get(point.status, point.status)
    return "-" if point.value is None else format_value(point.value, metric.unit)


def _footnotes(series: Sequence[Series]) -> list[str]:
    """Return why a case that is fine has no value here, once per reason."""
    reasons: dict[str, list[str]] = {}
    for one in series:
        for reason in dict.fromkeys(point.reason for point in one.absent if point.reason):
            reasons.setdefault(reason, []).append(one.label)
    return [
        f"- {', '.join(labels)}: {textwrap.shorten(with_units(reason), 200, placeholder=' ...')}"
        for reason, labels in reasons.items()
    ]


def _closing(report: Report) -> list[str]:
    lines = []
    for answer in answers(report) if len(report.groups) <= MOST_TABLES else ():
        said = [f"  {text}" for subject, text in answer.lines if subject in ("Speed", "Memory")]
        lines += [answer.title, *said] if said else []
    found = (
        share_finding(report),
        *quality_finding(report),
        accuracy_sentence(report.summary),
        doubt_sentence(report.summary),
        clock_sentence(report.summary),
    )
    return [*lines, *filter(None, found)]


def _plain_lines(table: PlainTable, width: int) -> list[str]:
    """Return a table as aligned text; where the width is too small, columns give way from the right."""
    texts = [[title for title, _ in table.columns], *table.rows]
    widths = [max(len(row[place]) for row in texts) for place in range(len(table.columns))]
    while len(widths) > 1 and sum(widths) + GAP * (len(widths) - 1) > width:
        widths.pop()
    return [
        (" " * GAP)
        .join(
            text.rjust(size) if numeric else text.ljust(size)
            for text, size, (_, numeric) in zip(row, widths, table.columns, strict=False)
        )
        .rstrip()
        for row in texts
    ]


def _wrapped(line: str, width: int) -> list[str]:
    deeper = "    " if line.startswith("  ") else "  "
    return textwrap.wrap(line, width, subsequent_indent=deeper, break_on_hyphens=False) or [""]
