"""Axes that read well. In: a range. Out: limits and labelled ticks (``256, 1k, 4k``; ``1, 10 ms``; ``1 MiB,
16 MiB``; ``0 %, 25 %``).
"""

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from attnbench.analysis.metrics import Unit
from attnbench.render.numbers import format_bytes, format_seqlen, shorten_exponent
from attnbench.render.styles import hex_color

MOST_TICKS = 7
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
LEAST_SPAN = 4.0
"""A narrower range is widened to this factor, so that noise does not look like a trend."""


def set_frame(axes: Axes) -> None:
    """Draw grid, ticks and spines in the quiet colours of the style file."""
    axes.grid(True, color=hex_color("grid"), linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_facecolor("none")
    axes.tick_params(colors=hex_color("muted"), labelcolor=hex_color("muted"), pad=3)
    for spine in axes.spines.values():
        spine.set_color(hex_color("muted"))


def set_seqlen_axis(axes: Axes, seqlens: Iterable[int]) -> None:
    """Give the x axis limits and a tick at every length, or at powers of two where there are too many."""
    known = sorted({seqlen for seqlen in seqlens if seqlen > 0}) or [1]
    axes.set_xlim(known[0] / 1.35, known[-1] * 1.35)
    ticks = known if len(known) <= MOST_TICKS else _powers_of_two(known[0], known[-1])
    _fix_ticks(axes.xaxis, ticks, [format_seqlen(tick) for tick in ticks])


def set_value_axis(axes: Axes, values: Iterable[float], unit: Unit) -> None:
    """Give the y axis log limits around the positive values, and few round ticks; fractions have a linear one
    from 0 to 100 %.
    """
    if unit == "fraction":
        axes.set_ylim(0.0, max([1.0, *values]) * 1.02)
        _fix_ticks(axes.yaxis, QUARTERS, [f"{100 * tick:.0f} %" for tick in QUARTERS])
        return
    axes.set_yscale("log")
    low, high = padded_range([value for value in values if value > 0])
    axes.set_ylim(low, high)
    ticks = _byte_ticks(low, high) if unit == "bytes" else _decimal_ticks(low, high)
    label = format_bytes_tick if unit == "bytes" else plain_tick
    _fix_ticks(axes.yaxis, ticks, [label(tick) for tick in ticks])


def set_rate_axis(axis: Axis, low: float, high: float, *, si: bool = False) -> None:
    """Give a log axis few round ticks between its limits, with decimal prefixes if ``si``."""
    ticks = _decimal_ticks(low, high)
    _fix_ticks(axis, ticks, [si_tick(tick) if si else plain_tick(tick) for tick in ticks])


def si_tick(value: float) -> str:
    """Return a tick with a decimal prefix: ``30 G``."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g} {prefix}"
    return f"{value:g}"


def padded_range(values: Sequence[float]) -> tuple[float, float]:
    """Return limits around the values, at least a factor `LEAST_SPAN` apart; 1 to 1024 without any."""
    if not values:
        return 1.0, 1024.0
    low, high = min(values), max(values)
    margin = max((high / low) ** 0.08, 1.15)
    low, high = low / margin, high * margin
    if high / low < LEAST_SPAN:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(LEAST_SPAN), middle * math.sqrt(LEAST_SPAN)
    return low, high


def plain_tick(value: float) -> str:
    """Return a tick of the form 1, 2 or 5 times a power of ten."""
    return f"{value:g}" if 1e-3 <= value < 1e5 else shorten_exponent(f"{value:.0e}")


def format_bytes_tick(value: float) -> str:
    """Return a power of two without decimals: ``16 MiB``."""
    return format_bytes(value).replace(".00", "").replace(".0", "")


def _fix_ticks(axis: Axis, ticks: Sequence[float], labels: Sequence[str]) -> None:
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_major_formatter(FixedFormatter(list(labels)))
    axis.set_minor_locator(NullLocator())


def _powers_of_two(low: float, high: float) -> list[int]:
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, math.ceil((last - first + 1) / MOST_TICKS))
    return [2**power for power in range(first, last + 1, step)]


def _byte_ticks(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = next(step for step in (1, 2, 5, 10, 20, 40, 80) if (last - first) / step < MOST_TICKS)
    aligned = range(math.ceil(first / step) * step, last + 1, step)
    return [2.0**power for power in aligned] or [2.0**first]


def _decimal_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    span = math.log10(high / low)
    mantissas = (1, 2, 5) if span < 2 else (1, 3) if span < 3 else (1,)
    step = max(1, math.ceil(span / MOST_TICKS))
    every = [mantissa * 10.0**power for power in range(first, last + 1, step) for mantissa in mantissas]
    return [tick for tick in every if low <= tick <= high]
