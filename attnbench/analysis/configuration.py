"""Whether two records of a case were measured in the same configuration. In: two records. Out: what differs.

A search for the fastest tiles may end differently from run to run, and a library may choose another backend:
what is slower then is another kernel, which is to be said before anybody calls the code slower.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from attnbench.measure.record import Record

NONE = "none"


def configuration_changes(before: Record, now: Record) -> list[str]:
    """Return what differs in tiles, launch numbers and backend, in words; empty if nothing does.

    A record without provenance says nothing, and so does a case that did not end ``ok``.
    """
    if before.status != "ok" or now.status != "ok":
        return []
    first, second = _configuration(before), _configuration(now)
    if first is None or second is None:
        return []
    return [
        f"{name}: {first.get(name, NONE)} before, {second.get(name, NONE)} now"
        for name in [*first, *(name for name in second if name not in first)]
        if first.get(name) != second.get(name)
    ]


def _configuration(record: Record) -> dict[str, Any] | None:
    if record.provenance is None:
        return None
    backend = {"backend": record.provenance.backend} if record.provenance.backend is not None else {}
    return backend | dict(_flat(record.provenance.autotune or {}))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
