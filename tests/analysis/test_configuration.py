"""E15: that another kernel ran is said, number by number, before anything is called slower."""

from typing import Any

import pytest

from attnbench.analysis.configuration import configuration_changes
from attnbench.measure.record import Provenance, Record

TILE = {"block_q": 64, "block_k": 64, "num_warps": 4}


def record(autotune: Any = None, backend: str | None = None, **changes) -> Record:
    provenance = Provenance(autotune=autotune, backend=backend)
    values: dict[str, Any] = {"case_id": "a", "case": {}, "status": "ok", "provenance": provenance}
    return Record(**(values | changes))


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        (record({"attention": {"forward": TILE}}), record({"attention": {"forward": dict(TILE)}}), []),
        (record(), record(), []),
        (
            record({"attention": {"forward": TILE}}),
            record({"attention": {"forward": TILE | {"num_warps": 8}}}),
            ["attention.forward.num_warps: 4 before, 8 now"],
        ),
        (
            record({"attention": {"forward": TILE}}),
            record({"attention": {"forward": TILE, "dq": {"block_q": 32}}}),
            ["attention.dq.block_q: none before, 32 now"],
        ),
        (record(backend="flash"), record(backend="math"), ["backend: flash before, math now"]),
        (record(backend="flash"), record(provenance=None), []),
        (record(backend="flash"), record(backend="math", status="crashed", reason="SIGSEGV"), []),
    ],
)
def test_what_differs_is_named(before, now, changes):
    assert configuration_changes(before, now) == changes
