"""`docs/architecture.md` names what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def named() -> set[str]:
    """Names of Python files on the page, `measure/{a,b}.py` taken apart."""
    found = set()
    for folder, stems in re.findall(r"`([\w/]*/)?(\w+|\{[\w,]+\})\.py`", PAGE):
        found |= {f"{folder}{stem}.py" for stem in stems.strip("{}").split(",")}
    return found


def test_files_on_the_page_exist() -> None:
    files = {str(path.relative_to(ROOT / "attnbench")) for path in (ROOT / "attnbench").rglob("*.py")}
    for name in named():
        assert any(file == name or file.endswith(f"/{name}") for file in files), name


@pytest.mark.parametrize("folder", ["contract", "model"])
def test_every_file_of_a_library_folder_is_on_the_page(folder: str) -> None:
    modules = {path.name for path in (ROOT / "attnbench" / folder).glob("*.py")} - {"__init__.py"}
    assert modules <= {name.rpartition("/")[2] for name in named()}
