"""How commands print. In: rows of plain data. Out: a table for people or JSON for machines, on stdout."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    def lines_of(text: str) -> list[str]:
        return [text] if text.isprintable() else strip_control_codes(text).split("\n")

    def padded(line: str, column: str) -> str:
        blank = " " * (widths[column] - cell_len(line))
        return blank + line if column in right else line + blank

    texts = {column: [row.get(column, "") for row in rows] for column in columns}
    cells = {column: [lines_of(text) for text in of_column] for column, of_column in texts.items()}
    widths = {
        column: max((cell_len(line) for lines in of_column for line in lines), default=0)
        for column, of_column in cells.items()
    }
    last = columns[-1]
    if room is not None and last not in right:
        left_over = room - sum(widths[column] + GAP for column in columns[:-1])
        if widths[last] > left_over:
            cells[last] = [_broken(text, left_over) for text in texts[last]]
            widths[last] = left_over
    filled = [[[padded(line, column) for line in lines] for lines in cells[column]] for column in columns]
    blanks = [padded("", column) for column in columns]
    for row in zip(*filled, strict=True):
        height = max(map(len, row))
        whole = [lines + [blank] * (height - len(lines)) for lines, blank in zip(row, blanks, strict=True)]
        yield [(" " * GAP).join(line).rstrip() for line in zip(*whole, strict=True)]


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

    room = _room()
    if room == UNLIMITED:
        return True

    def needed(column: str) -> int:
        texts = [row.get(column, "") for row in rows]
        if column == columns[-1] and column not in right:
            longest = max(map(cell_len, texts), default=0)
            words = max((cell_len(word) for text in texts for word in text.split()), default=0)
            return max(cell_len(column), words, min(longest, LEAST_TEXT))
        return max([cell_len(column), *map(cell_len, texts)])

    return sum(needed(column) + GAP for column in columns) - GAP <= room


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
