"""Rates against intensity under measured ceilings. In: a `Roofline`. Out: a figure, with axes for each mode.

Looks are the curves' own, as in every plot. Lines are ceilings: memory's slope up to the rate of products,
and the rate that ``exp2`` allows a forward pass.
"""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from attnbench.analysis.facets import MODE_WORDS
from attnbench.analysis.roofline import Roof, Roofline, RooflinePoint
from attnbench.render.axes import padded_range, set_frame, set_rate_axis
from attnbench.render.numbers import format_bytes, format_count
from attnbench.render.plots import draw_legend, matplotlib_settings
from attnbench.render.styles import Style, StyleBook, hex_color

AXES_INCHES = (3.4, 2.7)
LEGEND_INCHES = 2.6
COLUMNS = 2
DASHES = {"products": (), "memory": (4.0, 2.0), "exp2": (1.0, 1.5)}


def roofline_figure(roofline: Roofline, book: StyleBook) -> Figure | None:
    """Return the plot of the longest lengths; None where no case has an intensity."""
    placed = [point for point in roofline.longest if point.intensity]
    if not placed:
        return None
    modes = [mode for mode in MODE_WORDS if any(point.row.mode == mode for point in placed)]
    modes += sorted({point.row.mode for point in placed} - set(modes))
    columns = min(COLUMNS, len(modes))
    lines = math.ceil(len(modes) / columns)
    exp2 = _exp2_rate(roofline)
    with matplotlib_settings():
        figure = Figure(
            figsize=(AXES_INCHES[0] * columns + LEGEND_INCHES, AXES_INCHES[1] * lines),
            layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08),
            facecolor=hex_color("paper"),
        )
        entries: dict[str, Line2D] = {}
        for place, mode in enumerate(modes, start=1):
            axes = figure.add_subplot(lines, columns, place)
            _set_axes(axes, roofline.roof, placed, exp2)
            axes.set_title(MODE_WORDS.get(mode, mode), loc="left", color=hex_color("text"))
            entries |= _draw_roof(axes, roofline.roof, exp2 if mode == "fwd" else None)
            for point in placed:
                if point.row.mode == mode:
                    entries[point.label] = _draw_point(axes, point, book[point.label])
        draw_legend(figure, [(handle, label) for label, handle in entries.items()])
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        return figure


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
    drawn = {}
    for name, (xs, ys) in lines.items():
        (drawn[words[name]],) = axes.plot(
            xs,
            ys,
            color=hex_color("muted"),
            linestyle=(0, DASHES[name]) if DASHES[name] else "-",
            linewidth=1.2,
            zorder=1.5,
            label=f"ceiling {name}",
        )
    return drawn


def _draw_point(axes: Axes, point: RooflinePoint, style: Style) -> Line2D:
    (line,) = axes.plot(
        [point.intensity or math.nan],
        [point.flops_per_s],
        color=hex_color(style.color),
        marker=style.marker,
        fillstyle=style.fill,
        markerfacecoloralt=hex_color("paper"),
        linestyle="",
        markersize=6.5,
        label=f"point {point.label}",
    )
    return line
