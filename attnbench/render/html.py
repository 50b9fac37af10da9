"""The report as one HTML file. In: `Report`. Out: a page that opens from disk and loads nothing.

Everything that stems from a record is escaped by the template engine; only drawings, the style sheet and the script, which are made
here, are put in as they are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from attnbench import __version__
from attnbench.analysis.provenance import RunFacts
from attnbench.analysis.report import MetricPanels, Report
from attnbench.analysis.series import Panel, Series
from attnbench.render.glossary import METRIC_MEANINGS, TERMS
from attnbench.render.numbers import format_seqlen, format_value, plural
from attnbench.render.plots import legend_entries, panel_figure, svg_text, swatch_figure
from attnbench.render.styles import StyleBook
from attnbench.render.svg import color_variables, inline_svg
from attnbench.render.tables import case_table
from attnbench.render.words import (
    GROWTH_NOTE,
    accuracy_sentence,
    answers,
    by_rank,
    constants_words,
    doubt_sentence,
    other_function_sentence,
)

MOST_PANELS = 12
"""Panels of one quantity in the page; the rest is named, and is in the table."""
MOST_ANSWERS = 12
FOLDED_REASON = 70
LONGEST_REASON = 600


@dataclass(frozen=True, slots=True)
class DrawnPanel:
    """One drawing of the page."""

    title: str
    svg: str


@dataclass(frozen=True, slots=True)
class Plot:
    """One section of drawings."""

    key: str
    title: str
    meaning: str
    legend: tuple[tuple[str, str], ...]
    panels: tuple[DrawnPanel, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one kind for one reason."""

    status: str
    reason: str
    who: str
    count: int


def html_report(report: Report) -> str:
    """Return the page."""
    book = StyleBook(series for group in report.metrics for panel in group.drawn + group.empty for series in panel.series)
    every_answer = answers(report)
    template = _environment().get_template("report.html.jinja")
    return template.render(
        report=report,
        version=__version__,
        css=_text("report.css"),
        js=_text("report.js"),
        light=color_variables("light"),
        dark=color_variables("dark"),
        tally=by_rank(report.summary.tally),
        run_lines=run_lines,
        overview=overview(report),
        problems=problems(report),
        answers=every_answer[:MOST_ANSWERS],
        growth_note=GROWTH_NOTE,
        plots=[_plot(group, book) for group in report.metrics if group.drawn or group.empty],
        constants=constants_words(report),
        table=case_table(report),
        failures=failure_groups(report),
        left_out=left_out(report, len(every_answer)),
        glossary=TERMS,
        fold=FOLDED_REASON,
        longest=LONGEST_REASON,
    )


def run_lines(run: RunFacts) -> list[tuple[str, str]]:
    """Return what the head of a page says of a run; lines without a value are dropped there."""
    return [
        ("Run", run.label),
        ("On", run.hardware),
        ("With", run.software),
        ("Started", run.started.replace("T", " ").replace("Z", " UTC")),
        ("Revision", run.revision),
    ]


def overview(report: Report) -> list[str]:
    """Return the sentences that hold for the report as a whole."""
    if not report.rows:
        return ["There is no case in this run: nothing to show."]
    summary = report.summary
    return [
        text for text in (accuracy_sentence(summary), doubt_sentence(summary), other_function_sentence(summary)) if text
    ]


def problems(report: Report) -> list[str]:
    """Return what could not be read, and what was planned but has no record."""
    found = [f"{run.label}: {problem}" for run in report.runs for problem in run.problems]
    return found + [
        f"{run.label}: {plural(run.missing, 'planned case')} without a record" for run in report.runs if run.missing
    ]


def failure_groups(report: Report) -> list[FailureGroup]:
    """Return failures by status and reason, most frequent first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in report.rows:
        if not row.is_ok:
            groups.setdefault((row.status, row.reason), []).append(row.implementation)
    found = [
        FailureGroup(status, reason, ", ".join(dict.fromkeys(who)), len(who)) for (status, reason), who in groups.items()
    ]
    return sorted(found, key=lambda group: -group.count)


def left_out(report: Report, answer_count: int) -> list[str]:
    """Return what is in the records but not in the page, and where it is."""
    lines = []
    if report.samples:
        lines.append(f"{report.samples:,} raw samples of latencies are not in this page: samples.jsonl beside it holds them.")
    if answer_count > MOST_ANSWERS:
        lines.append(f"In short shows {MOST_ANSWERS} of {answer_count} circumstances; the table has every case.")
    return lines


def _plot(group: MetricPanels, book: StyleBook) -> Plot:
    shown = group.drawn[:MOST_PANELS]
    notes = [f"{panel.title}: nothing to draw. {_why_empty(panel)}" for panel in group.empty[:MOST_PANELS]]
    unseen = len(group.drawn) + len(group.empty) - len(shown) - len(notes)
    if unseen:
        notes.append(f"{unseen} more of these plots are left out here; the table has every case.")
    notes += _lacking(shown)
    return Plot(
        key=group.metric.key,
        title=group.metric.title,
        meaning=METRIC_MEANINGS[group.metric.key],
        legend=tuple((_swatch(place, group, handle), label) for place, (handle, label) in _legend(shown, book)),
        panels=tuple(_drawn(place, panel, book) for place, panel in enumerate(shown)),
        notes=tuple(notes),
    )


def _legend(panels: Sequence[Panel], book: StyleBook):  # type: ignore[no-untyped-def]
    return enumerate(legend_entries(panels, book))


def _swatch(place: int, group: MetricPanels, handle) -> str:  # type: ignore[no-untyped-def]
    return inline_svg(svg_text(swatch_figure(handle)), f"{group.metric.key}-legend{place}", "")


def _drawn(place: int, panel: Panel, book: StyleBook) -> DrawnPanel:
    name = f"{panel.metric.key}-{place}"
    return DrawnPanel(panel.title, inline_svg(svg_text(panel_figure(panel, book)), name, _spoken(panel)))


def _spoken(panel: Panel) -> str:
    ends = "; ".join(_spoken_series(series, panel) for series in panel.series)
    return f"{panel.metric.title} against sequence length, {panel.title}. {ends}"


def _spoken_series(series: Series, panel: Panel) -> str:
    if not series.measured:
        return f"{series.label}: no value"
    last = series.measured[-1]
    return f"{series.label}: {format_value(last.value, panel.metric.unit)} at {format_seqlen(last.seqlen)}"


def _why_empty(panel: Panel) -> str:
    reasons = dict.fromkeys(
        f"{series.label}: {point.status if point.failed else 'no value'}"
        for series in panel.series
        for point in series.points
        if point.value is None
    )
    return "; ".join(reasons)


def _lacking(panels: Sequence[Panel]) -> list[str]:
    """Return who lacks a value in a drawn panel though the case is fine, with the reason that the record gives."""
    reasons: dict[tuple[str, str], None] = {}
    for panel in panels:
        for series in panel.series:
            for point in series.absent:
                reasons[series.label, point.reason or "the record gives no reason"] = None
    return [f"No value for {label}: {reason[:LONGEST_REASON]}" for label, reason in reasons]


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["slug"] = lambda text: re.sub(r"[^a-z]+", "-", str(text).lower())
    return environment


def _text(name: str) -> str:
    return (files("attnbench") / "reports" / "templates" / name).read_text("utf-8")
