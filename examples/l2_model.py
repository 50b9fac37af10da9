"""Draw what a kernel would move through the memory's pins against the capacity of the L2 cache. No GPU.

    python examples/l2_model.py [--implementation NAME] [--seqlen N] [--heads N] [--out FILE] …

A forward pass in float16 is interpreted whole, under a full and a causal mask. Either trace goes through the
model of `attnbench/measure/l2_model.py` with three numbers of programs running side by side. The defaults
draw `docs/images/l2-model.png`, in about a minute.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from attnbench import Causal, Full, get_implementation
from attnbench.contract.cost import compulsory_bytes, tensor_bytes
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import Implementation, require_support
from attnbench.contract.problem import Problem
from attnbench.measure.inputs import make_inputs
from attnbench.measure.interpreter import trace_kernels
from attnbench.measure.l2_model import DramCurve, dram_curve
from attnbench.model.checkpoints import require_target
from attnbench.render.axes import format_bytes_tick, set_frame, set_value_axis
from attnbench.render.numbers import format_bytes
from attnbench.render.plots import draw_legend_below, matplotlib_settings, png_bytes
from attnbench.render.styles import hex_color, style_data

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "l2-model.png"
COLORS = ("grey", "blue", "vermillion")
INCHES = (8.2, 3.5)


class Traced(NamedTuple):
    """One mask: its problem, what was asked for, and the curves by programs side by side."""

    problem: Problem
    requested_bytes: int
    curves: Mapping[int, DramCurve]


def traced(implementation: Implementation, problem: Problem, programs: Sequence[int]) -> Traced:
    """Interpret the kernels and model the cache.

    Raises:
        UsageError: the problem is refused, or no kernel of it is interpreted.
    """
    require_support(implementation, problem)
    if implementation.execution(problem) != "interpreted":
        raise UsageError(f"{implementation.name} runs no kernel that Triton interprets")
    inputs = make_inputs(problem, seed=0)
    with trace_kernels(keep_accesses=True) as trace:
        implementation.attention(inputs["q"], inputs["k"], inputs["v"], problem=problem)
    curves = {count: dram_curve(trace.accesses(count)) for count in programs}
    return Traced(problem, trace.requested_bytes, curves)


def picture(of_masks: Sequence[Traced], heading: str) -> Figure:
    """Return one panel a mask."""
    with matplotlib_settings():
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
        figure = Figure(figsize=INCHES, layout=layout, facecolor=hex_color("paper"))
        figure.suptitle(heading, x=0.012, ha="left", fontsize=10, fontweight="bold", color=hex_color("text"))
        ends = [(compulsory_bytes(one.problem), one.requested_bytes) for one in of_masks]
        range_bytes = [min(low for low, _ in ends) / 1.4, max(high for _, high in ends) * 1.4]
        for place, one in enumerate(of_masks):
            axes = figure.add_subplot(1, len(of_masks), place + 1)
            draw(axes, one, range_bytes)
            if place == 0:
                axes.set_ylabel("predicted DRAM traffic", color=hex_color("muted"))
        draw_legend_below(figure)
        return figure


def draw(axes: Axes, one: Traced, range_bytes: Sequence[float]) -> None:
    """Draw the curves of a mask, and its requested and compulsory bytes, on an axis of this range."""
    floor, sizes = compulsory_bytes(one.problem), tensor_bytes(one.problem)
    of_head = (sizes["k"] + sizes["v"]) // (one.problem.batch * one.problem.num_kv_heads)
    everything = sum(sizes.values())
    low, high = of_head // 64, 4 * everything
    for (count, curve), color in zip(one.curves.items(), COLORS, strict=True):
        steps = [low, *(at for at in curve.capacities() if low < at < high), high]
        moved = [curve.dram_bytes(at) for at in steps]
        label = f"{count} program{'s side by side' if count > 1 else ' at a time'}"
        axes.step(steps, moved, where="post", color=hex_color(color), label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    ticks = [low * 4**power for power in range(12) if low * 4**power <= high]
    axes.set_xticks(ticks, [format_bytes_tick(tick) for tick in ticks])
    axes.minorticks_off()
    set_value_axis(axes, range_bytes, "bytes")
    set_frame(axes)
    axes.set_title(one.problem.mask.slug, loc="left", color=hex_color("text"), pad=14)
    axes.set_xlabel("capacity of the L2 cache", color=hex_color("muted"))
    note: dict[str, Any] = {
        "color": hex_color("muted"),
        "fontsize": style_data()["matplotlib"]["xtick.labelsize"],
    }
    line: dict[str, Any] = {"color": hex_color("muted"), "linewidth": 1.0, "zorder": 1}
    between = 2 * of_head
    for value, name, side in ((one.requested_bytes, "requested", "bottom"), (floor, "compulsory", "top")):
        axes.axhline(value, linestyle=(0, (4, 2)), **line)
        axes.text(between, value * (1.07 if side == "bottom" else 0.93), name, va=side, **note)
    for at, name in ((of_head, "k, v of a head"), (everything, "all tensors")):
        axes.axvline(at, linestyle=":", **line)
        axes.text(at, 1.02, name, ha="center", va="bottom", transform=axes.get_xaxis_transform(), **note)


def main(arguments: list[str] | None = None) -> None:
    """Interpret, print where each curve ends, and draw."""
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--implementation", default="triton-flash", help="default: %(default)s")
    parser.add_argument("--seqlen", type=int, default=2048, help="default: %(default)s")
    parser.add_argument("--heads", type=int, default=16, help="of width 64 (default: %(default)s)")
    parser.add_argument("--programs", type=int, nargs=3, default=[1, 16, 132], help="side by side")
    parser.add_argument("--out", type=Path, default=PICTURE, help="a PNG file (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if min(chosen.seqlen, chosen.heads, *chosen.programs) < 1:
        parser.error("--seqlen, --heads and --programs from 1")
    if len({*chosen.programs}) < 3:
        parser.error("--programs: three different numbers are needed")
    found = []
    try:
        require_target(chosen.out)
        implementation = get_implementation(chosen.implementation)
        for mask in (Full(), Causal()):
            problem = Problem(seqlen_q=chosen.seqlen, num_heads=chosen.heads, mask=mask, dtype="float16")
            found.append(traced(implementation, problem, sorted(chosen.programs)))
            requested = format_bytes(found[-1].requested_bytes)
            print(f"{mask.slug}: {requested} requested, {format_bytes(compulsory_bytes(problem))} compulsory")
            for count, curve in found[-1].curves.items():
                last = curve.capacities()[-1]
                least, holds = format_bytes(curve.dram_bytes(last)), format_bytes(last)
                print(f"  {count} at a time: {least} from a capacity of {holds} on")
        heading = f"{implementation.name}, {chosen.heads} heads of 64, {chosen.seqlen} tokens, float16"
        chosen.out.write_bytes(png_bytes(picture(found, heading)))
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
