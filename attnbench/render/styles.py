"""Which colour, marker and dash a curve has. In: ``reports/plot-style.toml`` and the curves of a report. Out:
a `StyleBook`.

Colour and marker belong to the implementation and are the same in every figure; dashes tell apart what shares
an implementation.
"""

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from attnbench.analysis.series import Series

Dash = tuple[float, ...]
Fill = Literal["full", "left", "top", "right", "bottom"]
FILLS: tuple[Fill, ...] = ("full", "left", "top", "right", "bottom")
"""How markers of one implementation are filled, by the place of the curve among its curves."""


@dataclass(frozen=True, slots=True)
class Style:
    """How one curve looks.

    ``color`` is a name in the style file; ``dash`` lists on and off lengths, empty for a solid line; ``fill``
    is the part of the marker that is filled.
    """

    color: str
    marker: str
    dash: Dash = ()
    fill: Fill = "full"


@cache
def style_data() -> dict[str, Any]:
    """Return the style file."""
    return tomllib.loads((files("attnbench") / "reports" / "plot-style.toml").read_text("utf-8"))


def hex_color(name: str, scheme: str = "light") -> str:
    """Return a colour of the style file for a ``light`` or ``dark`` page."""
    data = style_data()
    value: str = {**data["colors"], **data["neutral"]}[name][scheme]
    return value


class StyleBook:
    """The style of every curve of one report."""

    def __init__(self, series: Iterable[Series]) -> None:
        labels: dict[str, dict[str, None]] = {}
        for one in series:
            labels.setdefault(one.implementation, {})[one.label] = None
        looks = assign_looks(labels)
        self._styles = {
            label: Style(*looks[implementation], dash_pattern(place), FILLS[place % len(FILLS)])
            for implementation, names in labels.items()
            for place, label in enumerate(sorted(names, key=lambda label: label != implementation))
        }

    def __getitem__(self, label: str) -> Style:
        return self._styles[label]


def assign_looks(implementations: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return one ``(color, marker)`` per implementation, no two alike.

    The known ones have theirs. Any other name is hashed onto the remaining pairs, and moves on only where
    another name of the same report was there first, so that a name keeps its look from report to report.
    """
    data = style_data()
    known: Mapping[str, Mapping[str, str]] = data["implementations"]
    looks = {name: (look["color"], look["marker"]) for name, look in known.items()}
    taken = set(looks.values())
    free = [pair for pair in _other_pairs() if pair not in taken]
    near = free[: len(free) // 2]
    names = sorted(set(implementations) - set(looks))
    for name in names:
        candidates = near if any(pair not in taken for pair in near) else free
        first = int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:4], "big")
        turns = (candidates[(first + turn) % len(candidates)] for turn in range(len(candidates)))
        looks[name] = next((pair for pair in turns if pair not in taken), candidates[first % len(candidates)])
        taken.add(looks[name])
    return looks


def dash_pattern(place: int) -> Dash:
    """Return the dash of the ``place``-th curve of one implementation; beyond the style file's own, ever more
    dots after a dash.
    """
    patterns = style_data()["dashes"]["patterns"]
    if place < len(patterns):
        return tuple(patterns[place])
    return (10.0, 2.0, *((1.5, 1.5) * (place - len(patterns) + 1)))


def _other_pairs() -> list[tuple[str, str]]:
    others = style_data()["others"]
    return [(color, marker) for color in others["colors"] for marker in others["markers"]]
