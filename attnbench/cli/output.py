"""How commands print. In: rows of plain data. Out: a table for people or JSON for machines, on stdout."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

UNLIMITED = 10_000
GAP = 2
LEAST_TEXT = 24
"""Columns that a broken text needs to be readable beside the others."""


def print_json(value: Any) -> None:
    """Print plain data as JSON; numbers stay numbers, byte counts whole ones."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def print_table(
    rows: Iterable[Mapping[str, str]],
    columns: Sequence[str],
    *,
    right: Sequence[str] = (),
    header: bool = True,
) -> None:
    """Print rows under the names of their columns; those in ``right`` are aligned right.

    On a terminal, a text in the last column is broken between words to fit, or put on lines of its own under
    its row; everything else stays whole. Elsewhere a row is one line, for ``grep``.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown, last = list(rows), columns[-1]
    below = last not in right and not fits(shown, columns, right=right)
    beside = columns[:-1] if below else columns
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=header)
    for column in beside:
        number = column in right
        wraps = column == last and not number
        table.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=not wraps)
    for row in shown:
        table.add_row(*(Text(row.get(column, "")) for column in beside))
    room = _room()
    console = Console(highlight=False, width=room if fits(shown, beside, right=right) else UNLIMITED)
    with console.capture() as text:
        console.print(table)
    lines = text.get().splitlines()
    for place, line in enumerate(lines):
        print(line.rstrip())
        row_number = place - (len(lines) - len(shown))
        if below and row_number >= 0 and shown[row_number].get(last):
            print(_indented(shown[row_number][last], room))


def fits(rows: Sequence[Mapping[str, str]], columns: Sequence[str], *, right: Sequence[str] = ()) -> bool:
    """Return whether the table needs no more than the terminal's width, the last text column broken."""
    from rich.cells import cell_len

    def needed(column: str) -> int:
        texts = [row.get(column, "") for row in rows]
        if column == columns[-1] and column not in right:
            longest = max(map(cell_len, texts), default=0)
            words = max((cell_len(word) for text in texts for word in text.split()), default=0)
            return max(cell_len(column), words, min(longest, LEAST_TEXT))
        return max([cell_len(column), *map(cell_len, texts)])

    return sum(needed(column) + GAP for column in columns) - GAP <= _room()


def _room() -> int:
    """Return the columns of the terminal that stdout is; as many as one likes elsewhere."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else UNLIMITED


def _indented(text: str, width: int) -> str:
    from textwrap import fill

    indent = "    "
    return fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
