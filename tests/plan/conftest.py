"""Suites written for one test."""

from collections.abc import Callable
from pathlib import Path

import pytest

HEAD = 'name = "try"\ndescription = "for tests"\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write a suite file: a name, a description (two lines), and the given body."""

    def write_suite(body: str) -> Path:
        path = tmp_path / "try.toml"
        path.write_text(HEAD + body, encoding="utf-8")
        return path

    return write_suite
