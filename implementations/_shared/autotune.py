"""A search for the fastest tile on the GPU that is here, in place of the table's entry.

``ATTNBENCH_AUTOTUNE=1`` asks for it. In: tiles, the table's entry first, and what times one. Out: the
fastest, and its row for the table. Without that variable, or where no GPU is in use, nothing is searched.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

VARIABLE = "ATTNBENCH_AUTOTUNE"
LEAST_GAIN = 0.02
"""Part of the entry's time that another tile saves at least: a smaller one may be noise."""

TileT = TypeVar("TileT", bound=tuple[int, ...])
Steps = Mapping[str, Callable[[int], tuple[int, ...]]]
"""What a number of a tile may be besides what it is, by name."""


class Trial(NamedTuple):
    """What came of a tile: the median time of a call, and how many 32-bit registers a thread spills."""

    median_ms: float
    spilled: int


class Found(NamedTuple, Generic[TileT]):
    """The fastest of the tiles, its trial and that of the table's entry; None where one did not run."""

    tile: TileT
    trial: Trial | None
    entry: Trial | None
    tried: int
    failed: int


def is_wanted(device: str) -> bool:
    """Whether tiles are searched for a problem on ``device``: asked for, and this process uses a GPU.

    Nothing is initialised: a process that only predicts takes the table's tiles.
    """
    if os.environ.get(VARIABLE) != "1":
        return False
    import torch

    if torch.cuda.is_initialized():
        return device == "cuda"
    _say_where_no_gpu_is()
    return False


@cache
def _say_where_no_gpu_is() -> None:
    """Say once that the variable has no effect."""
    from attnbench.device.hardware import cuda_devices

    if not cuda_devices():
        say(f"{VARIABLE}=1, but there is no GPU: tiles are those of the table")


def say(text: str) -> None:
    """Print to stderr."""
    print(text, file=sys.stderr, flush=True)


def doubled_or_halved(least: int, most: int) -> Callable[[int], tuple[int, ...]]:
    """Return the step of a power of two between ``least`` and ``most``."""
    return lambda number: tuple(x for x in (number // 2, 2 * number) if least <= x <= most)


def one_more_or_less(most: int) -> Callable[[int], tuple[int, ...]]:
    """Return the step of a count between 1 and ``most``."""
    return lambda number: tuple(x for x in (number - 1, number + 1) if 1 <= x <= most)


def with_neighbours(entries: Sequence[Any], steps: Steps) -> list[Any]:
    """Return the entries, then every tile that differs from one of them in one number; each once."""
    return list(dict.fromkeys([*entries, *(near for tile in entries for near in _neighbours(tile, steps))]))


def _neighbours(tile: Any, steps: Steps) -> Iterator[Any]:
    for name, step in steps.items():
        for number in step(getattr(tile, name)):
            yield tile._replace(**{name: number})


def fastest(tiles: Sequence[TileT], attempt: Callable[[TileT], Trial]) -> Found[TileT]:
    """Try the tiles, the first of which is the table's entry.

    A tile that does not compile or does not fit is passed over, and so is one that spills more than the
    entry. If none runs the entry stays: the call that follows says what is wrong.
    """
    trials: dict[TileT, Trial] = {}
    for tile in tiles:
        try:
            trials[tile] = attempt(tile)
        except Exception:  # of the compiler's many passes and of the driver, each with exceptions of its own
            continue
    first, *_ = tiles
    entry = trials.get(first)
    allowed, limit_ms = (0, float("inf")) if entry is None else (entry.spilled, entry.median_ms)
    better = {
        tile: trial
        for tile, trial in trials.items()
        if trial.spilled <= allowed and trial.median_ms < (1 - LEAST_GAIN) * limit_ms
    }
    best = min(better, key=lambda tile: better[tile].median_ms, default=first)
    return Found(best, trials.get(best), entry, len(tiles), len(tiles) - len(trials))


def search(
    tiles: Sequence[TileT], attempt: Callable[[TileT], Trial], row: Callable[[Found[TileT]], str]
) -> TileT:
    """Return the fastest tile and say its row for the table.

    Args:
        tiles: the table's entry first.
        attempt: compiles and times what a tile is for; raises where that can't be.
        row: says what was found, as a row of the table.
    """
    found = fastest(tiles, attempt)
    say(row(found))
    return found.tile


def table_row(table: str, kind: str, width: int, tile: Any, found: Found[Any], problem: str) -> str:
    """Return lines of TOML for the table: what was tried on what, and the row of the fastest tile.

    Args:
        table: the row's table, such as ``forward.sm_90``.
        kind: its key there, such as ``16`` bits.
        width: of the heads, as the table counts it.
        tile: as the row holds it.
        found: what came of the search.
        problem: what the tiles were tried on, in words.
    """
    numbers = list(tile)
    defaults = type(tile)._field_defaults
    for name in reversed(tile._fields):
        if defaults.get(name, None) != numbers[-1]:
            break
        numbers.pop()
    times = f"{_milliseconds(found.trial)}, the table's tile {_milliseconds(found.entry)}"
    counts = f"{found.tried} tiles, {found.failed} of which did not run"
    return f"# {problem}: {times}; {counts}\n[{table}]\n{kind} = {{ {width} = {numbers} }}"


def _milliseconds(trial: Trial | None) -> str:
    return "did not run" if trial is None else f"{trial.median_ms:.4g} ms"
