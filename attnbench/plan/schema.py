"""The JSON schema of suite files, for editors. In: the structs of `keys`. Out: plain data, or its text."""

import json
from typing import Any

import msgspec

from .keys import SuiteFile


def suite_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a suite file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnbench suite",
        **msgspec.json.schema(SuiteFile),
    }


def suite_schema_text() -> str:
    """Return the schema as it stands in ``docs/suite.schema.json``."""
    return json.dumps(suite_schema(), indent=2, ensure_ascii=False) + "\n"


if (
    __name__ == "__main__"
):  # make the published file: python -m attnbench.plan.schema > docs/suite.schema.json
    print(suite_schema_text(), end="")
