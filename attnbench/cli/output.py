"""How commands print. In: rows of plain data. Out: a table for people or JSON for machines, on stdout."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
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
    shown, last = list(rows), columns[-1]
    below = last not in right and not fits(shown, columns, right=right)
    beside = columns[:-1] if below else columns
    titles = [{column: column for column in beside}] if header else []
    room = _room()
    lines = _laid_out([*titles, *shown], beside, right, room if fits(shown, beside, right=right) else None)
    for title in next(lines) if header else []:
        print(_bold(title))
    for row, of_row in zip(shown, lines, strict=True):
        print("\n".join(of_row))
        if below and row.get(last):
            print(_indented(row[last], room))


def _laid_out(
    rows: Sequence[Mapping[str, str]], columns: Sequence[str], right: Sequence[str], room: int | None
) -> Iterator[list[str]]:
    """Yield the lines of each row; a text in the last column is broken to fit ``room``, if there is one.

    By hand, since a table of Rich's takes half a millisecond a row.
    """
    from rich.cells import cell_len
    from rich.control import strip_control_codes

    texts = [[strip_control_codes(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(map(cell_len, column), default=0) for column in zip(*texts, strict=True)]
    wraps = columns[-1:] if room is not None and columns[-1] not in right else ()
    left_over = 0 if room is None else room - sum(width + GAP for width in widths[:-1])
    for row in texts:
        cells = [
            _broken(text, left_over) if column in wraps and cell_len(text) > left_over else text.split("\n")
            for column, text in zip(columns, row, strict=True)
        ]
        yield [
            (" " * GAP)
            .join(
                " " * (width - cell_len(part)) + part
                if column in right
                else part + " " * (width - cell_len(part))
                for column, width, part in zip(columns, widths, parts, strict=True)
            )
            .rstrip()
            for parts in zip_longest(*cells, fillvalue="")
        ]


def _broken(text: str, width: int) -> list[str]:
    """Return the lines of a text broken between words."""
    from rich.console import Console
    from rich.text import Text

    return [line.plain for line in Text(text).wrap(Console(), width, overflow="fold")]


def _bold(line: str) -> str:
    """Return the line as stdout shows it bold, which only a terminal does."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    with console.capture() as shown:
        console.print(Text(line, style="bold"), no_wrap=True, overflow="ignore", crop=False, end="")
    return shown.get()


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
