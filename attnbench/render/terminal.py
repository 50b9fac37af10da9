"""The answer at the end of a run, for a terminal. In: a run. Out: plain text of at most ``width`` columns."""

import textwrap
from collections.abc import Sequence

from attnbench.analysis.metrics import ERROR, METRICS, Metric
from attnbench.analysis.report import Report, build_report
from attnbench.analysis.series import Panel, Point, Series
from attnbench.render.numbers import format_seqlen, format_value, plural, with_units
from attnbench.render.words import accuracy_sentence, answers, constants_words, doubt_sentence, tally_words
from attnbench.run.store import Run

SHOWN = {"latency": "latency", "peak-memory": "memory"}
"""Quantities with tables of their own, and what a suite calls them.

A suite that asks for neither shows errors.
"""
SHORT_STATUS = {"unsupported": "unsup.", "incorrect": "wrong"}
LEAST_LABEL_WIDTH = 20
MOST_TABLES = 6
"""Tables of one quantity; the report has all."""
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
    lines += ["", *_closing(report)]
    return "\n".join(
        part for line in lines for part in (_wrapped(line, width) if len(line) > width else [line])
    )


def _asked(run: Run) -> set[str]:
    """Return the quantities that the run's suite asks for; all of them if the run does not say."""
    measure = run.meta.get("measure")
    metrics = measure.get("metrics") if isinstance(measure, dict) else None
    return set(metrics) if isinstance(metrics, list) and metrics else set(SHOWN.values())


def _metric_lines(report: Report, metric: Metric, width: int) -> list[str]:
    group = next(group for group in report.metrics if group.metric is metric)
    lines: list[str] = []
    for panel in group.drawn[:MOST_TABLES]:
        lines += ["", f"{metric.title}: {panel.title}", *_grid(panel, width)]
    if len(group.drawn) > MOST_TABLES:
        lines += ["", f"{metric.title}: {plural(len(group.drawn) - MOST_TABLES, 'more table')} in the report"]
    if len(group.empty) > MOST_NAMED:
        lines += ["", f"{metric.title}: none for {len(group.empty)} kinds of cases"]
    elif group.empty:
        lines += ["", f"{metric.title}: none for {'; '.join(panel.title for panel in group.empty)}"]
    return lines


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
    for answer in answers(report):
        said = [f"  {text}" for subject, text in answer.lines if subject in ("Speed", "Memory")]
        lines += [answer.title, *said] if said else []
    return [*lines, *filter(None, (accuracy_sentence(report.summary), doubt_sentence(report.summary)))]


def _wrapped(line: str, width: int) -> list[str]:
    deeper = "    " if line.startswith("  ") else "  "
    return textwrap.wrap(line, width, subsequent_indent=deeper, break_on_hyphens=False) or [""]
