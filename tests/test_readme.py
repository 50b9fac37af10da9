"""The README says what is there."""

import re
from pathlib import Path

import attnbench

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def table(heading: str) -> list[list[str]]:
    """Return the cells of the rows of the first table under a heading."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_table_names_every_implementation_with_its_complexity() -> None:
    told = {name.strip("`"): (time, memory) for name, _, time, memory in table("Implementations")}
    found = attnbench.find_implementations()
    assert told == {name: (item.complexity.time, item.complexity.memory) for name, item in found.items()}


def test_commands_and_links_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE)) <= set(targets)
    for link in re.findall(r"\]\(([^)#:]+)", README):
        assert (ROOT / link).exists(), link


def test_python_example_runs() -> None:
    example = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
    names: dict[str, object] = {}
    exec(example.split("frame =")[0], names)
    assert names["out"].shape == (1, 8, 1024, 64)  # type: ignore[attr-defined]
