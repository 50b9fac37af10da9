"""Draw how often a fit finds that a latency grows faster than declared. No GPU, no torch.

    python examples/exponent_power.py [--draws N] [--out FILE]

Latencies are made up: an overhead that is as large as the rest at the fourth length, a power of the length,
and lengths that each lie off by a few percent. What is counted is how often the 95 % interval of the exponent
lies above the declared one: at a difference of 0 that is a false alarm. The defaults draw
`docs/images/exponent-power.png`, in about a minute.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from attnbench.analysis.power_law import fit_power_law
from attnbench.render.axes import set_frame
from attnbench.render.plots import draw_legend_below, matplotlib_settings, png_bytes
from attnbench.render.styles import hex_color

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "exponent-power.png"
SHORTEST, DECLARED = 256, 1.0
LENGTHS = {5: "blue", 6: "vermillion", 8: "green"}
NOISES = (0.02, 0.05, 0.10)
DIFFERENCES = np.linspace(0, 1, 11)
INCHES = (8.2, 3.1)


def found_share(difference: float, count: int, noise: float, draws: int) -> float:
    """Return the share of draws whose interval lies above the declared exponent."""
    random = np.random.default_rng(0)
    seqlens = [SHORTEST * 2**step for step in range(count)]
    relative = np.array(seqlens, dtype=float) / seqlens[3]
    curve = relative ** (DECLARED + difference) + 1
    fits = [
        fit_power_law(seqlens, curve * np.exp(noise * random.standard_normal(count))) for _ in range(draws)
    ]
    return sum(fit is not None and fit.exponent_low > DECLARED for fit in fits) / draws


def picture(draws: int) -> Figure:
    """Return one panel a noise."""
    with matplotlib_settings():
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
        figure = Figure(figsize=INCHES, layout=layout, facecolor=hex_color("paper"))
        for place, noise in enumerate(NOISES):
            axes = figure.add_subplot(1, len(NOISES), place + 1)
            draw(axes, noise, draws)
            if place == 0:
                axes.set_ylabel("found, of all draws", color=hex_color("muted"))
        draw_legend_below(figure)
        return figure


def draw(axes: Axes, noise: float, draws: int) -> None:
    """Draw a curve for each number of lengths."""
    for count, color in LENGTHS.items():
        shares = [found_share(difference, count, noise, draws) for difference in DIFFERENCES]
        axes.plot(
            DIFFERENCES, shares, color=hex_color(color), marker="o", markersize=3, label=f"{count} lengths"
        )
    axes.axhline(0.025, color=hex_color("muted"), linestyle=":", linewidth=1.0)
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    set_frame(axes)
    axes.set_title(f"{100 * noise:.0f} % a length", loc="left", color=hex_color("text"))
    axes.set_xlabel("exponent above the declared", color=hex_color("muted"))


def main(arguments: list[str] | None = None) -> None:
    """Print the curves' shares at a few differences, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=500, help="of each point (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=PICTURE, help="a PNG file (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if chosen.draws < 1:
        parser.error("--draws from 1")
    if not chosen.out.parent.is_dir():
        parser.error(f"--out: there is no folder {chosen.out.parent}")
    for noise in NOISES:
        for count in LENGTHS:
            shares = [found_share(difference, count, noise, chosen.draws) for difference in (0.0, 0.3, 1.0)]
            said = ", ".join(f"{share:.1%}" for share in shares)
            print(f"{noise:.0%} a length, {count} lengths: found at +0, +0.3, +1.0: {said}")
    chosen.out.write_bytes(png_bytes(picture(chosen.draws)))


if __name__ == "__main__":
    main()
