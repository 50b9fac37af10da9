"""`docs/measuring.md` explains each number and verdict, names no other, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

from attnbench.measure.record import Agreement, Error, Latency, Memory, Provenance, Telemetry, Traffic
from attnbench.measure.verdicts import ORDER

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "measuring.md").read_text(encoding="utf-8")
FIELDS = {
    name
    for section in (Latency, Memory, Traffic, Telemetry, Agreement, Error, Provenance)
    for name in section.__struct_fields__
}


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)*_(?:ms|bytes|j|checked))`", PAGE)))
)
def test_a_field_that_is_named_exists(name):
    assert name in FIELDS


@pytest.mark.parametrize("section", [Memory, Traffic, Latency])
def test_every_number_is_explained(section):
    numbers = [name for name in section.__struct_fields__ if name.endswith(("_ms", "_bytes"))]
    assert [name for name in numbers if f"`{name}`" not in PAGE] == []


def test_every_verdict_is_explained():
    assert all(f"`{verdict}`" in PAGE for verdict in ORDER)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (DOCS / target).exists(), target
