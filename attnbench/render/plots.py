"""Plots of a quantity against the sequence length. In: `Panel`s. Out: matplotlib figures, SVG and PNG.

Figures are objects with a canvas of their own: no pyplot, no backend is chosen or changed, no display is
needed. Cases that failed stand in a strip above the axes at the length where they failed; a curve without
values is named there too.
"""

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import fill

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from attnbench.analysis.series import Panel
from attnbench.render.panels import draw_panel, linestyle, published_marker, shortened, strip_points
from attnbench.render.styles import Style, StyleBook, hex_color, style_data

PANEL_INCHES = (4.3, 3.0)
"""One of several in a picture."""
LONE_PANEL_INCHES = (3.7, 2.7)
"""One in a page, which scales it: smaller means larger text."""
LONE_MARGINS = {"left": 0.74, "right": 0.08, "bottom": 0.44, "top": 0.08}
"""Inches around the axes of a lone panel: fixed, so that the axes of neighbours line up."""
TITLE_CHARACTERS = 58
"""What fits above one of several panels; a longer title is broken into lines."""
DOTS_PER_INCH = 160


def panel_figure(panel: Panel, book: StyleBook) -> Figure:
    """Return one panel alone, without title or legend: the page around it has them."""
    with matplotlib_settings():
        above = strip_points(panel) / 72
        figure = Figure(figsize=(LONE_PANEL_INCHES[0], LONE_PANEL_INCHES[1] + above))
        figure.patch.set_alpha(0.0)
        set_lone_margins(figure, above)
        draw_panel(figure.add_subplot(), panel, book)
        return figure


def set_lone_margins(figure: Figure, above: float = 0.0) -> None:
    """Leave the margins of a lone panel, with ``above`` inches more at the top."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(
        left=LONE_MARGINS["left"] / width,
        right=1 - LONE_MARGINS["right"] / width,
        bottom=LONE_MARGINS["bottom"] / height,
        top=1 - (LONE_MARGINS["top"] + above) / height,
    )


def metric_figure(panels: Sequence[Panel], book: StyleBook, heading: str) -> Figure:
    """Return all panels of one metric as small multiples, with a legend beside the axes."""
    with matplotlib_settings():
        columns = min(2, len(panels))
        lines = math.ceil(len(panels) / columns)
        above = max(strip_points(panel) for panel in panels) / 72
        entries = legend_entries(panels, book)
        size = (
            PANEL_INCHES[0] * columns + 2.4,
            max((PANEL_INCHES[1] + 0.25 + above) * lines + 0.4, 0.19 * len(entries) + 0.8),
        )
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
        figure = Figure(figsize=size, layout=layout, facecolor=hex_color("paper"))
        figure.suptitle(heading, x=0.012, ha="left", fontsize=10, fontweight="bold", color=hex_color("text"))
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(lines, columns, place + 1)
            draw_panel(axes, panel, book)
            row = panels[place - place % columns : place - place % columns + columns]
            pad = 7 + max(strip_points(neighbour) for neighbour in row)
            title = fill(panel.title, TITLE_CHARACTERS)
            axes.set_title(title, loc="left", color=hex_color("text"), pad=pad)
        draw_legend(figure, entries)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, then drawn as often as there are formats
        return figure


def swatch_figure(handle: Line2D) -> Figure:
    """Return one legend handle as a drawing of its own, 2.6 times as wide as high."""
    with matplotlib_settings():
        figure = Figure(figsize=(0.52, 0.2))
        figure.patch.set_alpha(0.0)
        line = Line2D([0.04, 0.5, 0.96], [0.5, 0.5, 0.5], markevery=[1], transform=figure.transFigure)
        line.update_from(handle)
        line.set(transform=figure.transFigure, markevery=[1])
        figure.add_artist(line)
        return figure


def legend_entries(panels: Sequence[Panel], book: StyleBook) -> list[tuple[Line2D, str]]:
    """Return a handle and its text for every curve of the panels, those without any value included, then for
    what is drawn besides.
    """
    measured = {series.label: bool(series.measured) for panel in panels for series in panel.series}
    for panel in panels:
        measured.update({series.label: True for series in panel.series if series.measured})
    entries = [
        (_handle(book[label]), label if has_values else f"{label}: no data")
        for label, has_values in measured.items()
    ]
    points = [point for panel in panels for series in panel.series for point in series.points]
    if any(point.limit for point in points if point.value is not None):
        entries.append((Line2D([], [], color=hex_color("muted"), linestyle=":"), "error budget, same colour"))
    if any(point.floor for point in points):
        entries.append(
            (Line2D([], [], color=hex_color("muted"), linestyle=(0, (4, 2)), linewidth=1.0), "compulsory")
        )
    published = {curve.label: curve.place for panel in panels for curve in panel.published}
    entries += [(_published_handle(place), f"published: {label}") for label, place in published.items()]
    if any(point.failed and point.expected for point in points):
        handle = Line2D(
            [], [], color=hex_color("muted"), marker="o", linestyle=":", fillstyle="none", linewidth=1.0
        )
        entries.append((handle, "predicted, did not run"))
    if any(point.failed for point in points):
        cross = Line2D([], [], color=hex_color("muted"), marker="x", linestyle="", markeredgewidth=1.2)
        entries.append((cross, "failed at this length"))
    return entries


def svg_text(figure: Figure) -> str:
    """Return a figure as a standalone SVG document; text stays text."""
    buffer = io.StringIO()
    with matplotlib_settings():
        FigureCanvasSVG(figure).print_svg(
            buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return buffer.getvalue()


def png_bytes(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    buffer = io.BytesIO()
    with matplotlib_settings():
        figure.set_dpi(DOTS_PER_INCH)
        FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


@contextmanager
def matplotlib_settings() -> Iterator[None]:
    """Apply the style file for a while; a glyph that the font lacks becomes a box, not a warning."""
    with matplotlib.rc_context(style_data()["matplotlib"]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def draw_legend(figure: Figure, entries: Sequence[tuple[Line2D, str]]) -> None:
    """Draw a legend beside the axes."""
    legend = figure.legend(
        [handle for handle, _ in entries],
        ["."] * len(entries),
        loc="outside right upper",
        frameon=False,
        labelcolor=hex_color("text"),
        handlelength=2.6,
    )
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_text(shortened(label, 38))


def _published_handle(place: int) -> Line2D:
    return Line2D(
        [], [], color=hex_color("muted"), marker=published_marker(place), fillstyle="none", linestyle=""
    )


def draw_legend_below(figure: Figure) -> None:
    """Draw the legend of the first axes, which speaks for all of them, in one line under them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        labelcolor=hex_color("text"),
    )


def _handle(style: Style) -> Line2D:
    return Line2D(
        [],
        [],
        color=hex_color(style.color),
        marker=style.marker,
        fillstyle=style.fill,
        markerfacecoloralt=hex_color("paper"),
        linestyle=linestyle(style),
    )
