"""Plots of a quantity against the sequence length. In: `Panel`s. Out: matplotlib figures, SVG and PNG.

Figures are objects with a canvas of their own: no pyplot, no backend is chosen or changed, no display is needed. Cases that failed
stand in a strip above the axes at the length where they failed; a curve without values is named there too.
"""

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from attnbench.analysis.series import Panel, Series
from attnbench.render.axes import set_seqlen_axis, set_value_axis
from attnbench.render.styles import Style, StyleBook, hex_color, style_data

PANEL_INCHES = (4.3, 3.0)
STRIP_POINTS = 19.0
"""Height of one row of the strip above the axes: a line of text over a line of crosses."""
MOST_STRIPS = 6
SAME = 0.03
"""Curves closer than this share lie on one another; the lower one is drawn wider, so that both are seen."""
DOTS_PER_INCH = 160


def panel_figure(panel: Panel, book: StyleBook) -> Figure:
    """Return one panel alone, without title or legend: the page around it has them."""
    with _matplotlib_settings():
        width, height = PANEL_INCHES
        figure = Figure(figsize=(width, height + _strip_points(panel) / 72), layout="constrained")
        figure.patch.set_alpha(0.0)
        draw_panel(figure.add_subplot(), panel, book)
        return figure


def metric_figure(panels: Sequence[Panel], book: StyleBook, heading: str) -> Figure:
    """Return all panels of one metric as small multiples, with a legend beside the axes."""
    with _matplotlib_settings():
        columns = min(2, len(panels))
        lines = math.ceil(len(panels) / columns)
        strip_points = max(_strip_points(panel) for panel in panels)
        entries = legend_entries(panels, book)
        size = (
            PANEL_INCHES[0] * columns + 2.4,
            max((PANEL_INCHES[1] + 0.25 + strip_points / 72) * lines + 0.4, 0.19 * len(entries) + 0.8),
        )
        figure = Figure(figsize=size, layout="constrained", facecolor=hex_color("paper"))
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # type: ignore[union-attr]
        figure.suptitle(heading, x=0.012, ha="left", fontsize=10, fontweight="bold", color=hex_color("text"))
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(lines, columns, place + 1)
            draw_panel(axes, panel, book)
            row = panels[place - place % columns : place - place % columns + columns]
            pad = 7 + max(_strip_points(neighbour) for neighbour in row)
            axes.set_title(panel.title, loc="left", color=hex_color("text"), pad=pad)
        _draw_legend(figure, entries)
        return figure


def swatch_figure(handle: Line2D) -> Figure:
    """Return one legend handle as a drawing of its own, 2.6 times as wide as high."""
    with _matplotlib_settings():
        figure = Figure(figsize=(0.52, 0.2))
        figure.patch.set_alpha(0.0)
        line = Line2D([0.04, 0.5, 0.96], [0.5, 0.5, 0.5], markevery=[1], transform=figure.transFigure)
        line.update_from(handle)
        line.set(transform=figure.transFigure, markevery=[1])
        figure.add_artist(line)
        return figure


def draw_panel(axes: Axes, panel: Panel, book: StyleBook) -> None:
    """Draw one panel: curves, intervals, limits, floor, predictions, and the strip of what has no value."""
    metric = panel.metric
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(True, color=hex_color("grid"), linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_facecolor("none")
    axes.tick_params(colors=hex_color("muted"), labelcolor=hex_color("muted"), pad=3)
    for spine in axes.spines.values():
        spine.set_color(hex_color("muted"))
    set_seqlen_axis(axes, (point.seqlen for series in panel.series for point in series.points))
    set_value_axis(axes, _values(panel), metric.unit)
    unit = "ms" if metric.unit == "ms" else ""
    axes.set_xlabel("sequence length, tokens", color=hex_color("muted"))
    axes.set_ylabel(f"{metric.axis}, {unit}" if unit else metric.axis, color=hex_color("muted"))
    _draw_floor(axes, panel)
    for place, series in enumerate(panel.series):
        over = sum(_coincide(series, other) for other in panel.series[place + 1 :])
        _draw_series(axes, series, book[series.label], over)
    _draw_strips(axes, panel, book)
    if not panel.has_values:
        axes.text(
            0.5, 0.5, "no value at any length", transform=axes.transAxes, ha="center", va="center", color=hex_color("muted")
        )


def legend_entries(panels: Sequence[Panel], book: StyleBook) -> list[tuple[Line2D, str]]:
    """Return a handle and its text for every curve of the panels, those without any value included, then for what is drawn besides."""
    measured = {series.label: bool(series.measured) for panel in panels for series in panel.series}
    for panel in panels:
        measured.update({series.label: True for series in panel.series if series.measured})
    entries = [
        (_handle(book[label]), label if has_values else f"{label}: no data") for label, has_values in measured.items()
    ]
    points = [point for panel in panels for series in panel.series for point in series.points]
    if any(point.limit for point in points if point.value is not None):
        entries.append((Line2D([], [], color=hex_color("muted"), linestyle=":"), "error budget, same colour"))
    if any(point.floor for point in points):
        entries.append((Line2D([], [], color=hex_color("muted"), linestyle=(0, (4, 2)), linewidth=1.0), "compulsory"))
    if any(point.failed and point.expected for point in points):
        handle = Line2D([], [], color=hex_color("muted"), marker="o", linestyle=":", fillstyle="none", linewidth=1.0)
        entries.append((handle, "predicted, did not run"))
    if any(point.failed for point in points):
        cross = Line2D([], [], color=hex_color("muted"), marker="x", linestyle="", markeredgewidth=1.2)
        entries.append((cross, "failed at this length"))
    return entries


def svg_text(figure: Figure) -> str:
    """Return a figure as a standalone SVG document; text stays text."""
    buffer = io.StringIO()
    with _matplotlib_settings():
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return buffer.getvalue()


def png_bytes(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    buffer = io.BytesIO()
    with _matplotlib_settings():
        figure.set_dpi(DOTS_PER_INCH)
        FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


@contextmanager
def _matplotlib_settings() -> Iterator[None]:
    """Apply the style file for a while; a glyph that the font lacks is a box in the picture, not a warning."""
    with matplotlib.rc_context(style_data()["matplotlib"]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _values(panel: Panel) -> Iterator[float]:
    for series in panel.series:
        for point in series.points:
            if point.value is not None:
                yield from (value for value in (point.value, point.low, point.high, point.floor, point.limit) if value)
            elif point.failed and point.expected:
                yield point.expected


def _coincide(one: Series, other: Series) -> bool:
    """Say whether two curves lie on one another for most of their common lengths."""
    values = {point.seqlen: point.value for point in other.measured if point.value}
    shared = [(point.value, values[point.seqlen]) for point in one.measured if point.value and point.seqlen in values]
    close = sum(abs(mine - theirs) <= SAME * mine for mine, theirs in shared)
    return close > 0 and close >= len(shared) / 2


def _draw_series(axes: Axes, series: Series, style: Style, over: int) -> None:
    """Draw one curve; ``over`` says how many later ones lie on it."""
    color = hex_color(style.color)
    seqlens = [point.seqlen for point in series.points]
    curve = [point.value or math.nan for point in series.points]
    axes.plot(
        seqlens, curve, color=color, marker=style.marker, linestyle=_linestyle(style), linewidth=1.5 + 1.6 * over,
        markersize=4.8 + 2.6 * over, label=f"curve {series.label}",
    )  # fmt: skip
    lows = [point.low if point.value and point.low else math.nan for point in series.points]
    highs = [point.high if point.value and point.high else math.nan for point in series.points]
    if any(math.isfinite(low) for low in lows):
        axes.fill_between(seqlens, lows, highs, color=color, alpha=0.16, linewidth=0)
        axes.vlines(seqlens, lows, highs, color=color, linewidth=1.0)
    limits = [point.limit if point.value is not None and point.limit else math.nan for point in series.points]
    if any(math.isfinite(limit) for limit in limits):
        axes.plot(seqlens, limits, color=color, linestyle=":", linewidth=1.0, alpha=0.75, marker="_", markersize=4)
    _draw_zeros(axes, series, style)
    _draw_predicted(axes, series, style)


def _draw_zeros(axes: Axes, series: Series, style: Style) -> None:
    """A log axis has no zero: draw it hollow on the lower edge, and say so."""
    zeros = [point.seqlen for point in series.points if point.value == 0]
    if zeros:
        on_the_edge = blended_transform_factory(axes.transData, axes.transAxes)
        axes.plot(
            zeros, [0.0] * len(zeros), color=hex_color(style.color), marker=style.marker, linestyle="", fillstyle="none",
            transform=on_the_edge, clip_on=False, label=f"zeros {series.label}",
        )  # fmt: skip
        axes.text(0.02, 0.03, "hollow: exactly 0", transform=axes.transAxes, fontsize=6.5, color=hex_color("muted"))


def _draw_predicted(axes: Axes, series: Series, style: Style) -> None:
    """Draw what failed cases were predicted to need, hollow, joined to the last value before them."""
    predicted = [(point.seqlen, point.expected) for point in series.failed if point.expected]
    if predicted:
        before = [
            (point.seqlen, point.value) for point in series.measured if point.value and point.seqlen < predicted[0][0]
        ]
        path = [*before[-1:], *predicted]
        axes.plot(
            [seqlen for seqlen, _ in path], [value for _, value in path], color=hex_color(style.color), linestyle=":",
            linewidth=1.0, marker=style.marker, fillstyle="none", markevery=slice(len(before[-1:]), None),
            label=f"predicted {series.label}",
        )  # fmt: skip


def _draw_floor(axes: Axes, panel: Panel) -> None:
    floors = sorted(
        {(point.seqlen, point.floor) for series in panel.series for point in series.points if point.value and point.floor}
    )
    lowest: dict[int, float] = {}
    for seqlen, floor in floors:
        lowest.setdefault(seqlen, floor)
    if lowest:
        axes.plot(
            list(lowest), list(lowest.values()), color=hex_color("muted"), linestyle=(0, (4, 2)), linewidth=1.0, zorder=1.5
        )


def _strips(panel: Panel) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return ``(text, colour's label, lengths)`` of each row above the axes: failures by curve and status, then who lacks a value."""
    strips = [
        (f"{series.label}: {status}", series.label, tuple(point.seqlen for point in series.failed if point.status == status))
        for series in panel.series
        for status in dict.fromkeys(point.status for point in series.failed)
    ]
    lacking = [series.label + (" (partly)" if series.measured else "") for series in panel.series if series.absent]
    return [*strips, *([(f"no value: {', '.join(lacking)}", "", ())] if lacking else [])]


def _strip_points(panel: Panel) -> float:
    return STRIP_POINTS * min(len(_strips(panel)), MOST_STRIPS + 1)


def _draw_strips(axes: Axes, panel: Panel, book: StyleBook) -> None:
    strips = _strips(panel)
    shown = strips[:MOST_STRIPS]
    for row, (text, label, seqlens) in enumerate(reversed(shown)):
        text_y, cross_y = 13.5 + row * STRIP_POINTS, 5.0 + row * STRIP_POINTS
        _strip_text(axes, text_y, _shortened(text, 64))
        if seqlens:
            lift = ScaledTranslation(0, cross_y / 72, axes.figure.dpi_scale_trans)
            axes.plot(
                seqlens, [1.0] * len(seqlens), color=hex_color(book[label].color), marker="x", linestyle="-",
                linewidth=0.6, markersize=4.2, markeredgewidth=1.2, clip_on=False, label=f"failed {text}",
                transform=blended_transform_factory(axes.transData, axes.transAxes) + lift,
            )  # fmt: skip
    if len(strips) > MOST_STRIPS:
        _strip_text(axes, 13.5 + len(shown) * STRIP_POINTS, f"and {len(strips) - MOST_STRIPS} more: see the table")


def _strip_text(axes: Axes, points_above: float, text: str) -> None:
    lift = ScaledTranslation(0, points_above / 72, axes.figure.dpi_scale_trans)
    axes.text(
        0.0, 1.0, text, transform=axes.transAxes + lift, fontsize=6.8, color=hex_color("muted"), va="center", clip_on=False
    )


def _draw_legend(figure: Figure, entries: Sequence[tuple[Line2D, str]]) -> None:
    legend = figure.legend(
        [handle for handle, _ in entries],
        ["."] * len(entries),
        loc="outside right upper",
        frameon=False,
        labelcolor=hex_color("text"),
        handlelength=2.6,
    )
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_text(_shortened(label, 38))


def _handle(style: Style) -> Line2D:
    return Line2D([], [], color=hex_color(style.color), marker=style.marker, linestyle=_linestyle(style))


def _linestyle(style: Style) -> Literal["-"] | tuple[int, tuple[float, ...]]:
    return (0, style.dash) if style.dash else "-"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
