"""How commands print. In: rows of plain data. Out: a table for people or JSON for machines, on stdout."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

UNLIMITED = 10_000


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
    """Print rows under the names of their columns; those in ``right`` are aligned right and never broken.

    On a terminal, long texts are broken to fit; elsewhere a row is one line, for ``grep``.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=header)
    for column in columns:
        number = column in right
        table.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        table.add_row(*(Text(row.get(column, "")) for column in columns))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = UNLIMITED
    with console.capture() as text:
        console.print(table)
    for line in text.get().splitlines():
        print(line.rstrip())
