"""`docs/suites.md` names every key with its default, and its example is a suite."""

import re
from pathlib import Path

import pytest

from attnbench.plan.keys import CaseKeys
from attnbench.plan.settings import MeasureSettings
from attnbench.plan.suite import load_suite

PAGE = (Path(__file__).parents[2] / "docs" / "suites.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("struct", [CaseKeys, MeasureSettings])
def test_every_key_has_a_row(struct: type[CaseKeys | MeasureSettings]) -> None:
    first_cells = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    named = {key for cell in first_cells for key in re.findall(r"`(\w+)`", cell)}
    assert set(struct.__struct_fields__) <= named


def test_stated_defaults_of_measure() -> None:
    settings = MeasureSettings()
    budget = f"{settings.latency_budget_s:g}, {settings.warmup_s:g}, {settings.min_samples}"
    of_cases = f"{settings.case_timeout_s:g}", settings.launches
    for stated in (*of_cases, budget, settings.seed, settings.reference_rows):
        assert f"| {stated} |" in PAGE


def test_example_is_a_suite(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "example.toml"
    path.write_text(example, encoding="utf-8")
    assert len(load_suite(path, device="cpu").cases) == 2 * 3 * (1 + 2 + 1)
