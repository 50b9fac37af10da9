"""How much context a trained model needs: perplexity against the window. In: an `Exchange`. Out: a figure.

The colour is the implementation's, as in every plot; the dash is the length's, of a curve and of the level
that exact attention reaches there.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from attnbench.analysis.quality import Exchange, WindowCurve, window_curves
from attnbench.render.axes import set_frame, set_seqlen_axis
from attnbench.render.numbers import format_seqlen
from attnbench.render.panels import linestyle
from attnbench.render.plots import draw_legend, matplotlib_settings
from attnbench.render.styles import FILLS, Style, assign_looks, dash_pattern, hex_color

SIZE_INCHES = (6.4, 2.9)
TITLE = "Perplexity by window"


def window_figure(exchange: Exchange) -> Figure | None:
    """Return the plot; None where no implementation has several windows."""
    curves = window_curves(exchange)
    if not curves:
        return None
    looks = assign_looks({name for one in curves for name in (one.implementation, one.exact_implementation)})
    lengths = sorted({one.seqlen for one in curves})
    with matplotlib_settings():
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        figure = Figure(figsize=SIZE_INCHES, layout=layout, facecolor=hex_color("paper"))
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        set_frame(axes)
        set_seqlen_axis(axes, (window for one in curves for window, _ in one.points))
        axes.set_xlabel("window, tokens", color=hex_color("muted"))
        axes.set_ylabel("perplexity", color=hex_color("muted"))
        entries: dict[str, Line2D] = {}
        for one in curves:
            place = lengths.index(one.seqlen)
            dash, fill = dash_pattern(place), FILLS[place % len(FILLS)]
            at = f"at {format_seqlen(one.seqlen)}"
            own = Style(*looks[one.implementation], dash, fill)
            entries[f"{one.label} {at}"] = _draw_curve(axes, one, own)
            exact = Style(*looks[one.exact_implementation], dash)
            entries.setdefault(f"exact ({one.exact_implementation}) {at}", _draw_exact(axes, one, exact))
        draw_legend(figure, [(handle, label) for label, handle in entries.items()])
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        return figure


def _draw_curve(axes: Axes, curve: WindowCurve, style: Style) -> Line2D:
    windows, values = zip(*curve.points, strict=True)
    (line,) = axes.plot(
        windows,
        values,
        color=hex_color(style.color),
        marker=style.marker,
        fillstyle=style.fill,
        markerfacecoloralt=hex_color("paper"),
        linestyle=linestyle(style),
        label=f"curve {curve.label} {curve.seqlen}",
    )
    return line


def _draw_exact(axes: Axes, curve: WindowCurve, style: Style) -> Line2D:
    return axes.axhline(
        curve.exact, color=hex_color(style.color), linestyle=linestyle(style), linewidth=1.0, zorder=1.5
    )
