"""Rates against intensity under measured ceilings. In: a `Roofline`. Out: a figure, with axes for each mode.

Looks are the curves' own, as in every plot. Lines are ceilings: memory's slope up to the rate of products,
and the rate that ``exp2`` allows a forward pass.
"""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from attnbench.analysis.facets import MODE_WORDS
from attnbench.analysis.roofline import Roof, Roofline, RooflinePoint
from attnbench.render.axes import padded_range, set_frame, set_rate_axis
from attnbench.render.numbers import format_bytes, format_count
from attnbench.render.plots import (
    LONE_PANEL_INCHES,
    draw_legend,
    matplotlib_settings,
    set_lone_margins,
)
from attnbench.render.styles import Style, StyleBook, hex_color

AXES_INCHES = (3.4, 2.7)
LEGEND_INCHES = 2.6
COLUMNS = 2
DASHES = {"products": (), "memory": (4.0, 2.0), "exp2": (1.0, 1.5)}


def roofline_figure(roofline: Roofline, book: StyleBook) -> Figure | None:
    """Return the plot of the longest lengths, with a legend; None where no case has an intensity."""
    modes = _modes(roofline)
    if not modes:
        return None
    columns = min(COLUMNS, len(modes))
    lines = math.ceil(len(modes) / columns)
    with matplotlib_settings():
        figure = Figure(
            figsize=(AXES_INCHES[0] * columns + LEGEND_INCHES, AXES_INCHES[1] * lines),
            layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08),
            facecolor=hex_color("paper"),
        )
        entries: dict[str, Line2D] = {}
        for place, mode in enumerate(modes, start=1):
            axes = figure.add_subplot(lines, columns, place)
            axes.set_title(MODE_WORDS.get(mode, mode), loc="left", color=hex_color("text"))
            entries |= _draw(axes, roofline, mode, book)
        draw_legend(figure, [(handle, label) for label, handle in entries.items()])
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        return figure


def roofline_panels(
    roofline: Roofline, book: StyleBook
) -> tuple[list[tuple[str, Figure]], list[tuple[Line2D, str]]]:
    """Return the axes of each mode as a drawing of its own, under its name, and what a legend says of all."""
    panels: list[tuple[str, Figure]] = []
    entries: dict[str, Line2D] = {}
    for mode in _modes(roofline):
        with matplotlib_settings():
            figure = Figure(figsize=LONE_PANEL_INCHES)
            figure.patch.set_alpha(0.0)
            set_lone_margins(figure)
            entries |= _draw(figure.add_subplot(), roofline, mode, book)
        panels.append((MODE_WORDS.get(mode, mode), figure))
    return panels, [(handle, label) for label, handle in entries.items()]


def _placed(roofline: Roofline) -> list[RooflinePoint]:
    return [point for point in roofline.longest if point.intensity]


def _modes(roofline: Roofline) -> list[str]:
    """Return the modes that have a point, in reading order."""
    found = {point.row.mode for point in _placed(roofline)}
    return [mode for mode in MODE_WORDS if mode in found] + sorted(found - set(MODE_WORDS))


def _draw(axes: Axes, roofline: Roofline, mode: str, book: StyleBook) -> dict[str, Line2D]:
    """Draw one mode, and return what a legend says of it."""
    placed, exp2 = _placed(roofline), _exp2_rate(roofline)
    _set_axes(axes, roofline.roof, placed, exp2)
    entries = _draw_roof(axes, roofline.roof, exp2 if mode == "fwd" else None)
    for point in placed:
        if point.row.mode == mode:
            entries[point.label] = _draw_point(axes, point, book[point.label])
    return entries


def _exp2_rate(roofline: Roofline) -> float | None:
    """Return the FLOP/s at which a forward pass needs all of ``exp2``: 2 (D + Dv) for each of them.

    None where widths of heads differ, or no softmax among the cases states its exponentials.
    """
    softmax = [point.row for point in roofline.points if point.row.semantics in ("", "softmax")]
    widths = {row.head_dim + row.head_dim_v for row in softmax}
    rate = roofline.roof.exp2_per_s
    return 2 * widths.pop() * rate if rate and len(widths) == 1 and softmax else None


def _set_axes(axes: Axes, roof: Roof, points: Sequence[RooflinePoint], exp2: float | None) -> None:
    left, right = padded_range([*(point.intensity or roof.ridge for point in points), roof.ridge])
    low, high = padded_range(
        [*(point.flops_per_s for point in points), roof.flops_per_s, *([exp2] if exp2 else [])]
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    set_frame(axes)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    set_rate_axis(axes.xaxis, left, right)
    set_rate_axis(axes.yaxis, low, high, si=True)
    axes.set_xlabel("intensity, useful FLOPs a byte", color=hex_color("muted"))
    axes.set_ylabel("useful FLOP/s", color=hex_color("muted"))


def _draw_roof(axes: Axes, roof: Roof, exp2: float | None) -> dict[str, Line2D]:
    """Draw the ceilings, and return each with its words."""
    left, right = axes.get_xlim()
    lines = {
        "memory": ([left, roof.ridge], [left * roof.bytes_per_s, roof.flops_per_s]),
        "products": ([roof.ridge, right], [roof.flops_per_s] * 2),
    }
    words = {
        "memory": f"memory, {format_bytes(roof.bytes_per_s)}/s",
        "products": f"products, {format_count(int(roof.flops_per_s))}FLOP/s",
    }
    if exp2 is not None:
        lines["exp2"] = ([left, right], [exp2] * 2)
        words["exp2"] = f"exp2, {format_count(int(exp2))}FLOP/s forward"
    return {
        words[name]: _draw_line(
            axes,
            xs,
            ys,
            label=f"ceiling {name}",
            color=hex_color("muted"),
            linestyle=(0, DASHES[name]) if DASHES[name] else "-",
            linewidth=1.2,
            zorder=1.5,
        )
        for name, (xs, ys) in lines.items()
    }


def _draw_point(axes: Axes, point: RooflinePoint, style: Style) -> Line2D:
    return _draw_line(
        axes,
        [point.intensity or math.nan],
        [point.flops_per_s],
        label=f"point {point.label}",
        color=hex_color(style.color),
        marker=style.marker,
        fillstyle=style.fill,
        markerfacecoloralt=hex_color("paper"),
        linestyle="",
        markersize=6.5,
    )


def _draw_line(axes: Axes, xs: Sequence[float], ys: Sequence[float], *, label: str, **looks: Any) -> Line2D:
    """Draw a line, and return one that looks alike and is in no axes, for legends."""
    axes.plot(xs, ys, label=label, **looks)
    return Line2D([], [], **looks)
