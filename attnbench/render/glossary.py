"""What the numbers of a report mean, for every form of report. In: ``reports/glossary.toml``. Out: text."""

import tomllib
from functools import cache
from importlib.resources import files

from attnbench.render.vocabulary import STATUS_WORDS, VERDICT_WORDS, spaced


def metric_meaning(key: str) -> str:
    """Return what the plots of one quantity show."""
    return _data()["metrics"][key]


def terms() -> list[tuple[str, str]]:
    """Return ``(term, meaning)`` of every number, verdict and status that a report may show."""
    verdicts = "; ".join(f"{spaced(word)}: {said}" for word, said in VERDICT_WORDS.items())
    statuses = "; ".join(f"{word}: {said}" for word, said in STATUS_WORDS.items())
    return [*_data()["terms"].items(), ("Doubt of a latency", f"{verdicts}."), ("Status", f"{statuses}.")]


@cache
def _data() -> dict[str, dict[str, str]]:
    return tomllib.loads((files("attnbench") / "reports" / "glossary.toml").read_text("utf-8"))
