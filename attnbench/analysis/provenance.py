"""What was run, on what, and how to run it again. In: a run's ``run.json``. Out: `RunFacts`, text that is
safe to show.

The file may come from another version or another hand, so everything is looked up with care and nothing is
required.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.analysis.rows import clean_text
from attnbench.run.store import Run

MOST_FACTS = 80
LONGEST_FACT = 400
NOT_FACTS = ("cases", "suite.text", "launches")
"""Parts of ``run.json`` that the report shows elsewhere or that are too long to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run as the head and the foot of a report show it; an empty text where ``run.json`` lacks it."""

    label: str
    suite: str
    description: str
    hardware: str
    software: str
    started: str
    revision: str
    command: str
    status: str
    facts: tuple[tuple[str, str], ...]
    """Everything else that ``run.json`` says, as ``(dotted name, value)``."""
    problems: tuple[str, ...]
    """What could not be read."""
    missing: tuple[str, ...]
    """Ids of planned cases without a record."""


def run_facts(label: str, run: Run) -> RunFacts:
    """Return the facts of a run."""
    meta = run.meta
    suite = meta.get("suite")
    uses_gpu = any(record.case.get("device") == "cuda" for record in run.records)
    return RunFacts(
        label=clean_text(label),
        suite=clean_text(suite.get("name") if isinstance(suite, Mapping) else suite)
        or clean_text(run.path.name),
        description=clean_text(suite.get("description") if isinstance(suite, Mapping) else ""),
        hardware=_hardware(_table(meta, "environment"), uses_gpu),
        software=_software(_table(meta, "versions"), _table(meta, "environment")),
        started=clean_text(meta.get("started_utc")),
        revision=_revision(_table(meta, "revision").get("attnbench")),
        command=_command(meta.get("command")),
        status=clean_text(meta.get("status")),
        facts=tuple(_flat(meta))[:MOST_FACTS],
        problems=tuple(clean_text(problem) for problem in run.problems),
        missing=tuple(map(clean_text, run.missing)),
    )


def run_labels(paths: list[Path]) -> list[str]:
    """Return one label a run, no two alike: the folder's name, with its parents' where that is not enough."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        labels = ["/".join(part[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{path.name} ({place})" for place, path in enumerate(paths, start=1)]


def _hardware(environment: Mapping[str, Any], uses_gpu: bool) -> str:
    gpus = environment.get("gpus")
    if uses_gpu and isinstance(gpus, list) and gpus:
        names = [clean_text(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping)]
        return names[0] if len(names) == 1 else ", ".join(names)
    cpu = environment.get("cpu")
    if not isinstance(cpu, Mapping):
        return ""
    cores = cpu.get("logical_cores")
    return clean_text(cpu.get("model")) + (f", {cores} core{'' if cores == 1 else 's'}" if cores else "")


def _software(versions: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    shown = ("attnbench", "torch", "triton", "python")
    named = [f"{name} {clean_text(versions[name])}" for name in shown if versions.get(name)]
    return ", ".join([*named, *filter(None, [clean_text(environment.get("os"))])])


def _revision(revision: object) -> str:
    if not isinstance(revision, Mapping):
        return ""
    commit = clean_text(revision.get("commit"))[:12]
    return f"{commit}, modified" if commit and revision.get("modified") else commit


def _command(command: object) -> str:
    """Return a command line that a shell understands."""
    return shlex.join(map(clean_text, command)) if isinstance(command, list) else clean_text(command)


def _table(meta: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = meta.get(name)
    return value if isinstance(value, Mapping) else {}


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = f"{prefix}{clean_text(key)}"
        if name in NOT_FACTS or value in (None, "", [], {}):
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            text = ", ".join(map(clean_text, value)) if isinstance(value, list) else clean_text(value)
            yield name, text if len(text) <= LONGEST_FACT else text[:LONGEST_FACT] + " …"
