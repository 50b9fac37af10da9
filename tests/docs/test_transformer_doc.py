"""`docs/transformer.md` is true: its Python runs, its excerpts are in the source, what it names exists."""

import ast
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from attnbench.plan.suite import load_suite

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "transformer.md"
TEXT = PAGE.read_text(encoding="utf-8")


class Block(NamedTuple):
    """A fenced block: the words behind the fence, the section it stands in, its first line and its text."""

    info: str
    section: str
    line: int
    text: str


def blocks() -> list[Block]:
    """Every fenced block of the page."""
    found = []
    for match in re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", TEXT, re.MULTILINE):
        if match[1]:
            before = TEXT[: match.start()]
            headings = re.findall(r"^## (.*)$", before, re.MULTILINE)
            found.append(Block(match[1], headings[-1] if headings else "", before.count("\n") + 2, match[2]))
    return found


RUNNABLE = [block for block in blocks() if block.info == "python"]
EXCERPTS = [block for block in blocks() if block.info.startswith("python ")]
SETUP = [block for block in RUNNABLE if not block.section]
SECTIONS = list(dict.fromkeys(block.section for block in RUNNABLE if block.section))


@pytest.mark.parametrize("section", SECTIONS)
def test_python_of_the_section_runs(section: str) -> None:
    """One namespace a section; an assertion that fails is reported with the page's own line."""
    names: dict[str, Any] = {}
    for block in [*SETUP, *(block for block in RUNNABLE if block.section == section)]:
        exec(compile("\n" * (block.line - 1) + block.text, str(PAGE), "exec"), names)


def test_every_section_with_python_asserts_something() -> None:
    silent = [s for s in SECTIONS if not any("assert" in b.text for b in RUNNABLE if b.section == s)]
    assert (silent, len(SETUP)) == ([], 1)


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda block: f"line{block.line}")
def test_excerpt_is_in_the_source(excerpt: Block) -> None:
    source = (ROOT / excerpt.info.split()[1]).read_text(encoding="utf-8")
    levels = range(0, 16, 4)
    assert any(textwrap.indent(excerpt.text, " " * level) in source for level in levels), excerpt.text


def defined_in(path: Path) -> set[str]:
    """Names of functions, classes, their methods and constants of a module, with a dot inside classes."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_links_lead_somewhere_and_named_code_is_there() -> None:
    links = re.findall(r"\[([^\]]*)\]\(([^)#:]+)\)", TEXT)
    assert len(links) > 20
    for text, target in links:
        path = PAGE.parent / target
        assert path.exists(), target
        if path.suffix == ".py" and (name := re.fullmatch(r"`([A-Za-z_.]+)`", text)):
            assert name[1] in defined_in(path), f"{name[1]} in {target}"


def test_links_inside_the_page_have_a_heading() -> None:
    anchors = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors


def test_suites_in_commands_exist() -> None:
    suites = re.findall(r"attnbench (?:run|show) ([a-z-]+)", TEXT)
    assert suites
    for suite in suites:
        assert load_suite(suite, device="cpu").cases
