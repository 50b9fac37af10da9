"""The report as one HTML file. In: `Report`. Out: a page that opens from disk and loads nothing.

Everything that stems from a record is escaped by the template engine; only drawings, the style sheet and the
script, which are made here, are put in as they are.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.lines import Line2D

from attnbench import __version__
from attnbench.analysis.facets import group_title
from attnbench.analysis.report import MetricPanels, Report
from attnbench.analysis.series import Panel, Series
from attnbench.render.by_model import panels_by_model
from attnbench.render.exchange_table import MEANING, TITLE, exchange_tables
from attnbench.render.frontier_table import MEANING as FRONTIER_MEANING
from attnbench.render.frontier_table import TITLE as FRONTIER_TITLE
from attnbench.render.frontier_table import frontier_tables
from attnbench.render.glossary import metric_meaning, terms
from attnbench.render.growth_table import MEANING as GROWTH_MEANING
from attnbench.render.growth_table import (
    OVERTAKING_MEANING,
    OVERTAKING_TITLE,
    growth_tables,
    overtaking_tables,
    stand_outs,
)
from attnbench.render.growth_table import TITLE as GROWTH_TITLE
from attnbench.render.numbers import format_seqlen, format_value, length_words, plural, with_units
from attnbench.render.overview import failure_groups, left_out, overview, problems, run_lines
from attnbench.render.plots import legend_entries, panel_figure, svg_text, swatch_figure
from attnbench.render.published_table import MEANING as PUBLISHED_MEANING
from attnbench.render.published_table import TITLE as PUBLISHED
from attnbench.render.published_table import published_tables
from attnbench.render.roofline_plot import roofline_panels
from attnbench.render.roofline_table import MEANING as ROOFLINE_MEANING
from attnbench.render.roofline_table import TITLE as ROOFLINE
from attnbench.render.roofline_table import roof_title, roofline_tables
from attnbench.render.share_table import share_tables
from attnbench.render.styles import StyleBook
from attnbench.render.svg import PageDrawings, color_variables
from attnbench.render.tables import case_table
from attnbench.render.window_plot import TITLE as WINDOWS
from attnbench.render.window_plot import window_figure
from attnbench.render.words import GROWTH_NOTE, answers, by_rank, constants_words

MOST_PANELS = 18
"""Panels of one quantity in the page; the rest is named, and is in the table."""
MOST_ANSWERS = 18
FOLDED_ANSWERS = 6
"""More answers than this are folded: the plots tell the same."""
FOLDED_REASON = 70
LONGEST_REASON = 600
POWER = re.compile(r"\bn\^(-?[\d.]+\d)")
QUANTITY = re.compile(r"(\d) (?=%|(?:µs|ms|s|B|[KMGTPE]iB|tokens|times)\b)")


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
    parts: tuple[tuple[str, tuple[DrawnPanel, ...]], ...]
    """Panels by the model that they are about, named where there are several."""
    notes: tuple[str, ...]


def html_report(report: Report) -> str:
    """Return the page."""
    book = StyleBook(report.series)
    drawings = PageDrawings()
    windows = _window_plots(report, drawings)
    plots = [
        _plot(group, book, drawings, report.untold) for group in report.metrics if group.drawn or group.empty
    ]
    rooflines = [*zip(roofline_tables(report), _roofline_plots(report, book, drawings), strict=True)]
    every_answer = answers(report)
    names = {name for one in report.series for name in (one.label, one.implementation)}
    template = _environment(names).get_template("report.html.jinja")
    return template.render(
        report=report,
        version=__version__,
        css=_text("report.css"),
        js=_text("report.js"),
        light=color_variables("light"),
        dark=color_variables("dark"),
        drawn_css=drawings.css(),
        tally=by_rank(report.summary.tally),
        run_lines=run_lines,
        overview=overview(report),
        problems=[*problems(report), *stand_outs(report)],
        findings=[
            (OVERTAKING_TITLE, OVERTAKING_MEANING, overtaking_tables(report)),
            (FRONTIER_TITLE, FRONTIER_MEANING, frontier_tables(report)),
            (GROWTH_TITLE, GROWTH_MEANING, growth_tables(report)),
        ],
        answers=every_answer[:MOST_ANSWERS],
        fold_answers=len(every_answer) > FOLDED_ANSWERS,
        growth_note=GROWTH_NOTE if report.summary.growth else "",
        shares=share_tables(report),
        exchange_title=TITLE,
        exchange_meaning=MEANING,
        windows_title=WINDOWS,
        exchanges=[*zip(exchange_tables(report), windows, strict=True)],
        plots=plots,
        rooflines=rooflines,
        roofline_title=ROOFLINE,
        roofline_meaning=ROOFLINE_MEANING,
        published=published_tables(report),
        published_title=PUBLISHED,
        published_meaning=PUBLISHED_MEANING,
        constants=constants_words(report),
        table=case_table(report),
        failures=failure_groups(report),
        left_out=[*left_out(report), *_unseen(len(every_answer))],
        glossary=terms(),
        fold=FOLDED_REASON,
        longest=LONGEST_REASON,
    )


def _window_plots(report: Report, drawings: PageDrawings) -> list[str]:
    """Return a drawing for each trained model, empty where no implementation has several windows."""
    figures = map(window_figure, report.summary.exchanges)
    return [
        "" if figure is None else drawings.element(svg_text(figure), f"windows-{place}", WINDOWS)
        for place, figure in enumerate(figures)
    ]


def _roofline_plots(report: Report, book: StyleBook, drawings: PageDrawings) -> Iterator[Plot]:
    """Yield the drawings of each roof: a panel for each mode, none where no case has an intensity."""
    for place, one in enumerate(report.rooflines):
        key = f"roofline-{place}"
        panels, entries = roofline_panels(one, book)
        yield Plot(
            key=key,
            title=roof_title(one.roof, report),
            meaning="",
            legend=_swatches(key, entries, drawings),
            parts=(
                (
                    "",
                    tuple(
                        DrawnPanel(
                            title=mode,
                            svg=drawings.element(
                                svg_text(figure), f"{key}-{mode_place}", f"{ROOFLINE}, {mode}"
                            ),
                        )
                        for mode_place, (mode, figure) in enumerate(panels)
                    ),
                ),
            ),
            notes=(),
        )


def _unseen(answer_count: int) -> list[str]:
    hidden = answer_count - MOST_ANSWERS
    return (
        [f"{plural(hidden, 'more circumstance')} in short: left out here, all in the table."]
        if hidden > 0
        else []
    )


def _plot(group: MetricPanels, book: StyleBook, drawings: PageDrawings, untold: set[str]) -> Plot:
    shown = group.drawn[:MOST_PANELS]
    notes = [f"{panel.title}: nothing to draw. {_why_empty(panel)}" for panel in group.empty[:MOST_PANELS]]
    unseen = len(group.drawn) + len(group.empty) - len(shown) - len(notes)
    if unseen:
        notes.append(f"{unseen} more of these plots are left out here; the table has every case.")
    notes += _lacking(shown)
    return Plot(
        key=group.metric.key,
        title=group.metric.title,
        meaning=metric_meaning(group.metric.key),
        legend=_legend(group.metric.key, shown, book, drawings),
        parts=tuple(_parts(shown, book, drawings, untold)),
        notes=tuple(notes),
    )


def _legend(
    key: str, panels: Sequence[Panel], book: StyleBook, drawings: PageDrawings
) -> tuple[tuple[str, str], ...]:
    return _swatches(key, legend_entries(panels, book), drawings)


def _swatches(
    key: str, entries: Sequence[tuple[Line2D, str]], drawings: PageDrawings
) -> tuple[tuple[str, str], ...]:
    """Return ``(drawing, label)`` of every legend entry."""
    return tuple(
        (drawings.element(svg_text(swatch_figure(handle)), f"{key}-legend{place}", ""), label)
        for place, (handle, label) in enumerate(entries)
    )


def _parts(
    panels: Sequence[Panel], book: StyleBook, drawings: PageDrawings, untold: set[str]
) -> Iterator[tuple[str, tuple[DrawnPanel, ...]]]:
    """Yield panels under the name of their model, or without where none has two of them."""
    place = count()
    parts = list(panels_by_model(panels, untold))
    if len(parts) == len(panels):
        parts = [("", untold, panels)]
    for model, told_above, members in parts:
        yield (
            model,
            tuple(
                DrawnPanel(
                    title=group_title(panel.facet, told_above),
                    svg=drawings.element(
                        svg_text(panel_figure(panel, book)),
                        f"{panel.metric.key}-{next(place)}",
                        _spoken(panel),
                    ),
                )
                for panel in members
            ),
        )


def _spoken(panel: Panel) -> str:
    ends = "; ".join(_spoken_series(series, panel) for series in panel.series)
    return f"{panel.metric.title} against {length_words(panel.facet.mode)}, {panel.title}. {ends}"


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
    """Return who lacks a value in a drawn panel though the case is fine, with the reason that the record
    gives.
    """
    reasons: dict[tuple[str, str], None] = {}
    for panel in panels:
        for series in panel.series:
            for point in series.absent:
                reasons[series.label, point.reason or "the record gives no reason"] = None
    return [f"No value for {label}: {reason[:LONGEST_REASON]}" for label, reason in reasons]


def _environment(names: Collection[str]) -> Environment:
    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sentence"] = lambda text: sentence_markup(text, names)
    environment.filters["with_units"] = with_units
    environment.filters["slug"] = lambda text: re.sub(r"[^a-z]+", "-", str(text).lower())
    return environment


def sentence_markup(text: str, names: Collection[str]) -> Markup:
    """Return an escaped sentence in which names stand out and no unit is torn from its number."""
    escaped = QUANTITY.sub("\\1\u00a0", str(escape(text)))
    choices = sorted({str(escape(name)) for name in names if name}, key=len, reverse=True)
    if choices:
        pattern = r"(?<![\w&#-])(" + "|".join(map(re.escape, choices)) + r")(?![\w-])"
        escaped = re.sub(pattern, r"<b>\1</b>", escaped)
    return Markup(POWER.sub(r"n<sup>\1</sup>", escaped))


def _text(name: str) -> str:
    return (files("attnbench") / "reports" / "templates" / name).read_text("utf-8")
