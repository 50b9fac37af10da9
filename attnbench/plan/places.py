"""Where in a suite file something stands. In: a path such as ``$.sweep[0].mode``. Out: a line, and words.

`tomllib` keeps no positions, so headers and keys are looked up in the text again: enough to point at a typo.
"""

import re
from dataclasses import dataclass

_HEADER = re.compile(r"\s*(\[\[?)\s*([\w-]+)\s*\]\]?")


@dataclass(frozen=True)
class Place:
    """A table of a suite file, and a key in it unless the table itself is meant."""

    table: str = ""
    """``defaults``, ``measure``, ``sweep``, or empty for the top of the file."""
    index: int = 0
    """Which ``[[sweep]]``, from 0."""
    key: str = ""

    @classmethod
    def of_path(cls, path: str) -> "Place":
        """Read a path as msgspec writes it: ``$.defaults.seqlen[...]``."""
        match = re.match(r"\$(?:\.([\w-]+))?(?:\[(\d+)\])?(?:\.(.+?))?(?:\[|$)", path)
        table, index, key = match.groups() if match else (None, None, None)
        if key or index:
            return cls(table or "", int(index or 0), key or "")
        return cls(key=table or "")

    def line(self, text: str) -> int:
        """Return the line of the key, counted from 1, or of its table's header where the key is not found."""
        table, seen, header_line = "", -1, 1
        wanted = re.compile(rf"""\s*["']?{re.escape(self.key)}["']?\s*[.=]""") if self.key else None
        for number, line in enumerate(text.splitlines(), start=1):
            if header := _HEADER.match(line):
                table = header[2]
                seen += table == "sweep"
                if not self.table and table == self.key:
                    return number
                if self._is_in(table, seen):
                    header_line = number
            elif wanted and self._is_in(table, seen) and wanted.match(line):
                return number
        return header_line

    def _is_in(self, table: str, sweep: int) -> bool:
        return table == self.table and (table != "sweep" or sweep == self.index)

    def __str__(self) -> str:
        """``sweep 2``, ``[defaults]``, ``[measure]``, or ``top of the file``."""
        if self.table == "sweep":
            return f"sweep {self.index + 1}"
        return f"[{self.table}]" if self.table else "top level"
