"""The published JSON schema is that of the code."""

import json
from pathlib import Path

from attnbench.plan.keys import CaseKeys
from attnbench.plan.schema import suite_schema, suite_schema_text

PUBLISHED = Path(__file__).parents[2] / "docs" / "suite.schema.json"


def test_published_schema_is_current() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == suite_schema_text(), (
        "run: python -m attnbench.plan.schema > docs/suite.schema.json"
    )


def test_every_key_is_described() -> None:
    keys = suite_schema()["$defs"]["CaseKeys"]
    assert keys["additionalProperties"] is False
    assert set(keys["properties"]) == set(CaseKeys.__struct_fields__)
    assert all(each.get("description") for each in keys["properties"].values()), json.dumps(keys, indent=1)
