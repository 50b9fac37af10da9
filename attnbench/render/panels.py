"""One pair of axes. In: a `Panel`. Out: curves, intervals, limits, predictions, and what has no value, drawn.

Cases that failed stand in a strip above the axes at the length where they failed; a curve without values is
named there too.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from attnbench.analysis.facets import DECODE
from attnbench.analysis.series import Panel, Series
from attnbench.render.axes import set_frame, set_seqlen_axis, set_value_axis
from attnbench.render.numbers import length_words
from attnbench.render.styles import Style, StyleBook, hex_color

STRIP_POINTS = 19.0
"""Height of one row of the strip above the axes: a line of text over a line of crosses."""
MOST_STRIPS = 6
SAME = 0.03
"""Curves closer than this share lie on one another; the lower one is drawn wider, so that both are seen."""
PUBLISHED_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
MOST_OVER = 3
"""Steps by which a curve gets wider for those that lie on it."""


def draw_panel(axes: Axes, panel: Panel, book: StyleBook) -> None:
    """Draw one panel: curves, intervals, limits, floor, predictions, and the strip of what has no value."""
    given, panel = panel, _placeable(panel)
    metric = panel.metric
    axes.set_xscale("log", base=2)
    set_frame(axes)
    set_seqlen_axis(axes, (point.seqlen for series in panel.series for point in series.points))
    set_value_axis(axes, _values(panel), metric.unit)
    axes.set_xlabel(f"{length_words(panel.facet.mode)}, tokens", color=hex_color("muted"))
    axes.set_ylabel(_value_words(panel), color=hex_color("muted"))
    _draw_floor(axes, panel)
    for place, series in enumerate(panel.series):
        over = min(MOST_OVER, sum(_coincide(series, other) for other in panel.series[place + 1 :]))
        _draw_series(axes, series, book[series.label], over)
    _draw_published(axes, panel)
    _draw_strips(axes, given, book)
    if not panel.has_values:
        axes.text(
            0.5,
            0.5,
            "no value at any length" + (" above 0" if given.has_values else ""),
            transform=axes.transAxes,
            ha="center",
            va="center",
            color=hex_color("muted"),
        )


def strip_points(panel: Panel) -> float:
    """Return the height of the strip above a panel, in points."""
    return STRIP_POINTS * min(len(_strips(panel)), MOST_STRIPS + 1)


def _value_words(panel: Panel) -> str:
    metric = panel.metric
    axis = metric.axis_decode if panel.facet.mode == DECODE and metric.axis_decode else metric.axis
    return f"{axis}, ms" if metric.unit == "ms" else axis


def linestyle(style: Style) -> Literal["-"] | tuple[int, tuple[float, ...]]:
    """Return a style's dashes in matplotlib's form."""
    return (0, style.dash) if style.dash else "-"


def shortened(text: str, most: int) -> str:
    """Return ``text``, cut to ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _placeable(panel: Panel) -> Panel:
    """Return the panel without what has no place on a log axis: the length 0."""
    return replace(
        panel,
        series=tuple(
            replace(one, points=tuple(point for point in one.points if point.seqlen > 0))
            for one in panel.series
        ),
    )


def _values(panel: Panel) -> Iterator[float]:
    for series in panel.series:
        for point in series.points:
            if point.value is not None:
                yield from (
                    value for value in (point.value, point.low, point.high, point.floor, point.limit) if value
                )
            elif point.failed and point.expected:
                yield point.expected
    for curve in panel.published:
        yield from (value for _, value in curve.points)


def _coincide(one: Series, other: Series) -> bool:
    """Say whether most of one curve lies on another."""
    values = {point.seqlen: point.value for point in other.measured if point.value}
    close = sum(
        abs(point.value - values[point.seqlen]) <= SAME * point.value
        for point in one.measured
        if point.value and point.seqlen in values
    )
    return close > len(one.measured) / 2


def _draw_series(axes: Axes, series: Series, style: Style, over: int) -> None:
    """Draw one curve; ``over`` says how many later ones lie on it."""
    color = hex_color(style.color)
    seqlens = [point.seqlen for point in series.points]
    lowest = 0.0 if axes.get_yscale() == "linear" else math.nan
    curve = [math.nan if point.value is None else point.value or lowest for point in series.points]
    axes.plot(
        seqlens,
        curve,
        color=color,
        alpha=0.55 if over else 1.0,
        marker=style.marker,
        fillstyle=style.fill,
        markerfacecoloralt=hex_color("paper"),
        linestyle=linestyle(style),
        linewidth=1.5 + 1.6 * over,
        markersize=4.8 + 2.6 * over,
        label=f"curve {series.label}",
    )
    lows = [point.low if point.value and point.low else math.nan for point in series.points]
    highs = [point.high if point.value and point.high else math.nan for point in series.points]
    if any(math.isfinite(low) for low in lows):
        axes.fill_between(seqlens, lows, highs, color=color, alpha=0.16, linewidth=0)
        axes.vlines(seqlens, lows, highs, color=color, linewidth=1.0)
    limits = [point.limit if point.value is not None and point.limit else math.nan for point in series.points]
    if any(math.isfinite(limit) for limit in limits):
        axes.plot(
            seqlens, limits, color=color, linestyle=":", linewidth=1.0, alpha=0.75, marker="_", markersize=4
        )
    _draw_zeros(axes, series, style)
    _draw_predicted(axes, series, style)


def _draw_zeros(axes: Axes, series: Series, style: Style) -> None:
    """A log axis has no zero: draw it hollow on the lower edge, and say so."""
    zeros = [point.seqlen for point in series.points if point.value == 0]
    if zeros and axes.get_yscale() == "log":
        on_the_edge = blended_transform_factory(axes.transData, axes.transAxes)
        axes.plot(
            zeros,
            [0.0] * len(zeros),
            color=hex_color(style.color),
            marker=style.marker,
            linestyle="",
            fillstyle="none",
            transform=on_the_edge,
            clip_on=False,
            label=f"zeros {series.label}",
        )
        axes.text(
            0.02, 0.03, "hollow: exactly 0", transform=axes.transAxes, fontsize=6.5, color=hex_color("muted")
        )


def _draw_predicted(axes: Axes, series: Series, style: Style) -> None:
    """Draw what failed cases were predicted to need, hollow, joined to the last value before them."""
    predicted = [(point.seqlen, point.expected) for point in series.failed if point.expected]
    if predicted:
        before = [
            (point.seqlen, point.value)
            for point in series.measured
            if point.value and point.seqlen < predicted[0][0]
        ]
        path = [*before[-1:], *predicted]
        axes.plot(
            [seqlen for seqlen, _ in path],
            [value for _, value in path],
            color=hex_color(style.color),
            linestyle=":",
            linewidth=1.0,
            marker=style.marker,
            fillstyle="none",
            markevery=slice(len(before[-1:]), None),
            label=f"predicted {series.label}",
        )


def _draw_floor(axes: Axes, panel: Panel) -> None:
    floors = sorted(
        {
            (point.seqlen, point.floor)
            for series in panel.series
            for point in series.points
            if point.value and point.floor
        }
    )
    lowest: dict[int, float] = {}
    for seqlen, floor in floors:
        lowest.setdefault(seqlen, floor)
    if lowest:
        axes.plot(
            list(lowest),
            list(lowest.values()),
            color=hex_color("muted"),
            linestyle=(0, (4, 2)),
            linewidth=1.0,
            zorder=1.5,
        )


def _draw_published(axes: Axes, panel: Panel) -> None:
    """Draw what others published, hollow, in the colour of what is no curve of ours."""
    for curve in panel.published:
        axes.plot(
            [seqlen for seqlen, _ in curve.points],
            [value for _, value in curve.points],
            color=hex_color("muted"),
            marker=published_marker(curve.place),
            fillstyle="none",
            linestyle="",
            zorder=2.5,
            label=f"published {curve.label}",
        )


def published_marker(place: int) -> str:
    """Return the marker of a published series, by its place among those of a report."""
    return PUBLISHED_MARKERS[place % len(PUBLISHED_MARKERS)]


def _strips(panel: Panel) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return ``(text, colour's label, lengths)`` of each row above the axes: failures by curve and status,
    who lacks a value, whose interval is of one launch alone, and that the length 0 is left out.
    """
    unplaced = any(point.seqlen <= 0 for series in panel.series for point in series.points)
    panel = _placeable(panel)
    strips = [
        (
            f"{series.label}: {status}",
            series.label,
            tuple(point.seqlen for point in series.failed if point.status == status),
        )
        for series in panel.series
        for status in dict.fromkeys(point.status for point in series.failed)
    ]
    lacking = [
        series.label + (" (partly)" if series.measured else "") for series in panel.series if series.absent
    ]
    notes = [f"no value: {', '.join(lacking)}"] if lacking else []
    within = [series.label for series in panel.series if any(point.one_launch for point in series.measured)]
    if within:
        notes.append(f"interval of one launch: {', '.join(within)}")
    if unplaced:
        notes.append("length 0: in the table, a log axis has no place for it")
    return [*strips, *((note, "", ()) for note in notes)]


def _draw_strips(axes: Axes, panel: Panel, book: StyleBook) -> None:
    strips = _strips(panel)
    shown = strips[:MOST_STRIPS]
    for row, (text, label, seqlens) in enumerate(reversed(shown)):
        text_y, cross_y = 13.5 + row * STRIP_POINTS, 5.0 + row * STRIP_POINTS
        _strip_text(axes, text_y, shortened(text, 64))
        if seqlens:
            lift = ScaledTranslation(0, cross_y / 72, axes.figure.dpi_scale_trans)
            axes.plot(
                seqlens,
                [1.0] * len(seqlens),
                color=hex_color(book[label].color),
                marker="x",
                linestyle="-",
                linewidth=0.6,
                markersize=4.2,
                markeredgewidth=1.2,
                clip_on=False,
                label=f"failed {text}",
                transform=blended_transform_factory(axes.transData, axes.transAxes) + lift,
            )
    if len(strips) > MOST_STRIPS:
        _strip_text(
            axes, 13.5 + len(shown) * STRIP_POINTS, f"and {len(strips) - MOST_STRIPS} more: see the table"
        )


def _strip_text(axes: Axes, points_above: float, text: str) -> None:
    lift = ScaledTranslation(0, points_above / 72, axes.figure.dpi_scale_trans)
    axes.text(
        0.0,
        1.0,
        text,
        transform=axes.transAxes + lift,
        fontsize=6.8,
        color=hex_color("muted"),
        va="center",
        clip_on=False,
    )
