"""Whether kernels compile to what they did. In: rows of now and of then. Out: differences in words.

A baseline is what ``attnbench kernels --json`` printed. Exact where both were compiled by the same Triton;
another version allocates registers in another way, so that differences are news there, not faults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.contract.errors import UsageError

from .kernels import Row, identity


class Difference(NamedTuple):
    """One fact of one row; ``fault`` if the same Triton compiled both."""

    row: str
    fact: str
    then: Any
    now: Any
    fault: bool


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or "can't be read").lower()
    if isinstance(error, KeyError):
        return f"a row without {error}"
    if isinstance(error, UnicodeDecodeError | json.JSONDecodeError):
        return "not JSON"
    return "not a list of rows"


def read_baseline(path: Path) -> list[Row]:
    """Return the rows of a baseline.

    Raises:
        UsageError: the file can't be read, or it is none.
    """
    try:
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list):
            raise TypeError("not a list of rows")
        for row in rows:
            identity(row)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is no baseline of `attnbench kernels --json`: {_why(error)}") from error
    return rows


def differences(then: Sequence[Row], now: Sequence[Row]) -> Iterator[Difference]:
    """Yield what differs, for the rows that are in both."""
    before = {identity(row): row for row in then}
    for row in now:
        old = before.get(identity(row))
        if old is None:
            continue
        same_compiler = old.get("triton") == row.get("triton")
        for fact, was, is_now in _facts(old, row):
            yield Difference(name_of(row), fact, was, is_now, same_compiler)


def _facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for fact in dict.fromkeys([*old, *new]):
        was, is_now = old.get(fact), new.get(fact)
        if fact == "triton" or was == is_now:
            continue
        if isinstance(was, dict) and isinstance(is_now, dict):
            yield from ((f"{fact}.{name}", a, b) for name, a, b in _facts(was, is_now))
        else:
            yield fact, was, is_now


def name_of(row: Mapping[str, Any]) -> str:
    """Return a row's identity in words."""
    return f"{row['implementation']} {row['kernel']} {form_of(row)} {row['target']}"


def form_of(row: Mapping[str, Any]) -> str:
    """Return a row's form in words: ``fwd bfloat16 D128 causal ragged (2)``."""
    words = [row["mode"], row["dtype"], f"D{row['head_dim']}", row["mask"]]
    words += ["ragged"] if row["ragged"] else []
    words += [f"({row['variant']})"] if row["variant"] > 1 else []
    return " ".join(word for word in words if word)
