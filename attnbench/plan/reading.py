"""A suite's TOML text becomes a `SuiteFile`. Out: its tables, or one line that says what is wrong."""

import re
import tomllib
from typing import Any, get_type_hints

import msgspec

from attnbench.contract.errors import UsageError, nearest

from .keys import CaseKeys, SuiteFile
from .places import Place
from .settings import MeasureSettings

LONGEST_VALUE = 80
TABLES: dict[str, type[msgspec.Struct]] = {
    "": SuiteFile,
    "defaults": CaseKeys,
    "sweep": CaseKeys,
    "measure": MeasureSettings,
}


def read_suite_text(text: str, source: str) -> SuiteFile:
    """Parse the text of a suite.

    Raises:
        UsageError: not TOML, an unknown key, or a value of the wrong type; it names file, line, table, key,
            what was expected and the nearest valid name.
    """
    try:
        tables = tomllib.loads(text)
        return msgspec.convert(tables, SuiteFile)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: not TOML: {error}") from None
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, UsageError):  # a table's own words about its values
            _, _, path = str(error).partition(" - at ")
            table = Place.of_path(path.strip("`")).key
            raise usage_error(source, text, Place(table), str(error.__cause__)) from None
        raise _explained(str(error), tables, text, source) from None


def usage_error(source: str, text: str, place: Place, message: str) -> UsageError:
    """Return the error that names the file, the line and the table before the message."""
    return UsageError(f"{source}:{place.line(text)}: {place}: {message}")


def _explained(message: str, tables: dict[str, Any], text: str, source: str) -> UsageError:
    """Translate msgspec's message."""
    message, _, path = message.partition(" - at ")
    path = path.strip("`") or "$"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", message)
    place = Place.of_path(f"{path}.{unknown[1]}" if unknown else path)
    table = TABLES[place.table]
    known = list(table.__struct_fields__)
    if unknown:
        choices = f"{nearest(place.key, known)}; expected one of {', '.join(known)}"
        return usage_error(source, text, place, f"unknown key {place.key!r}{choices}")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", message):
        return usage_error(source, text, place, f"the key {missing[1]!r} is missing")
    if wrong := re.fullmatch(r"Invalid enum value '(.*)'", message):
        words = re.findall(r"[\w-]+", _expected(table, place.key))
        got = f"{wrong[1]!r}{nearest(wrong[1], words)}"
    else:
        got = _shortened(repr(_value(tables, place)))
    return usage_error(source, text, place, f"{place.key}: expected {_expected(table, place.key)}; got {got}")


def _value(tables: dict[str, Any], place: Place) -> Any:
    """Return what the file says at a place."""
    table = tables.get(place.table, {}) if place.table else tables
    if isinstance(table, list):
        table = table[place.index] if place.index < len(table) else {}
    return table.get(place.key) if isinstance(table, dict) and place.key else table


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + " …"


def _expected(table: type[msgspec.Struct], key: str) -> str:
    """Return what the schema says about a key."""
    hint: Any = get_type_hints(table, include_extras=True).get(key)
    descriptions = [meta.description for meta in getattr(hint, "__metadata__", ()) if meta.description]
    return descriptions[0] if descriptions else "something else"
