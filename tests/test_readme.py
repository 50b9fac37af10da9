"""The README says what is there, and says it in both languages."""

import re
from collections import Counter
from pathlib import Path

import pytest

import attnbench
from attnbench.model.presets import preset_weights
from attnbench.plan.suite import load_suite

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
HEADINGS = {
    "# attnbench": "# attnbench",
    "## What it answers": "## 它回答什么问题",
    "## Implementations": "## 已有的实现",
    "## Use": "## 用法",
    "## Models": "## 模型",
    "## Add your own": "## 添加自己的实现",
    "## More": "## 更多",
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PYTHON = [text for language, text in BLOCK.findall(README) if language == "python"]


def tables(page: str) -> list[list[list[str]]]:
    """The cells of every table of a page."""
    found = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in t.splitlines()] for t in found]


def headings(page: str) -> list[str]:
    return re.findall(r"^#+ .*$", BLOCK.sub("", page), re.MULTILINE)


def test_table_names_every_implementation_with_its_complexity() -> None:
    (rows,) = [table[2:] for table in tables(README) if table[0][0] == "name"]
    told = {name.strip("`"): (time, memory) for name, _, time, memory in rows}
    found = attnbench.find_implementations()
    assert told == {name: (item.complexity.time, item.complexity.memory) for name, item in found.items()}


def test_commands_and_links_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE)) <= set(targets)
    for link in re.findall(r"\]\(([^)#:]+)", README + CHINESE):
        assert (ROOT / link).exists(), link
    for script in re.findall(r"python (\S+\.py)", README):
        assert (ROOT / script).is_file(), script
    for suite in re.findall(r"attnbench (?:run|show) ([a-z]+)", README):
        assert load_suite(suite, device="cpu").cases


def test_python_of_attention_runs() -> None:
    names: dict[str, object] = {}
    exec(PYTHON[0].split("frame =")[0], names)
    assert names["out"].shape == (1, 8, 1024, 64)  # type: ignore[attr-defined]


def test_python_of_models_runs() -> None:
    names: dict[str, object] = {}
    exec(PYTHON[1], names)
    shapes = {name: tuple(names[name].shape) for name in ("logits", "written", "features")}  # type: ignore[attr-defined]  # names of the page
    assert shapes == {"logits": (1, 20, 37000), "written": (1, 8), "features": (1, 300, 768)}


def test_python_of_conversion_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "path" / "to" / "model")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(PYTHON[2], names)
    assert names["model"].config.vocab_size == 50  # type: ignore[attr-defined]  # a name of the page


def test_trained_preset_reaches_what_the_page_says() -> None:
    reached, counted = re.findall(
        r"\((\d\.\d\d) nats a byte on held-out files, where a trigram model has (\d\.\d\d)\)", README
    )[0]
    made = (preset_weights("stdlib-decoder").parent / "README.md").read_text(encoding="utf-8")
    numbers = [round(float(number), 2) for number in re.findall(r"\b(\d\.\d{3})\b", made)]
    assert [float(reached), float(counted)] == numbers


def test_headings_are_pairs_in_both_languages() -> None:
    assert list(HEADINGS) == headings(README)
    assert list(HEADINGS.values()) == headings(CHINESE)


def test_code_and_commands_are_the_same_in_both_languages() -> None:
    assert BLOCK.findall(CHINESE) == BLOCK.findall(README)
    prose = [BLOCK.sub("", page) for page in (README, CHINESE)]
    english, chinese = (Counter(re.findall(r"`[^`]+`", page)) for page in prose)
    assert chinese == english


def test_links_and_tables_are_the_same_in_both_languages() -> None:
    english, chinese = (
        [link for link in re.findall(r"\]\(([^)]+)\)", page) if not link.startswith("README")]
        for page in (README, CHINESE)
    )
    assert chinese == english
    for ours, theirs in zip(tables(README), tables(CHINESE), strict=True):
        assert [len(row) for row in ours] == [len(row) for row in theirs]
    assert [row[::2] for row in tables(README)[1][1:]] == [row[::2] for row in tables(CHINESE)[1][1:]]
