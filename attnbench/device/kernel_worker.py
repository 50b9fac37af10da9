"""Compiles kernels in a process of its own: `python -m attnbench.device.kernel_worker FACTS`.

In: JSON lines, ``{"name": …}`` (which implementations are behind it?), or a task with ``variant``, ``target``
and ``form``. Out: a JSON line for each, ``{"error": …}`` if the user is to be told. Triton compiles only
where it does not interpret, and a compiler that crashes takes this process down, not ours.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import triton

from attnbench.contract.discovery import find_implementations, get_implementations
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import Implementation, KernelSpec
from attnbench.contract.problem import Problem

from .compile import CompilationFailed, compile_launch, describe
from .kernel_forms import Form, problems
from .targets import Target, find_target


def implementations(name: str | None) -> list[dict[str, Any]]:
    """Return the name and the kernels of each implementation behind ``name`` (None: of all there are)."""
    found = find_implementations().values() if name is None else get_implementations(name)
    return [
        {"name": item.name, "kernels": [spec.name for spec in item.kernels if spec.variants is not None]}
        for item in found
    ]


def rows(name: str, variant: str, form: Form, target: Target, facts: Path) -> list[dict[str, Any]]:
    """Return a row for each different kernel that the implementation launches for a form on a target."""
    item = next(item for item in get_implementations(name) if item.name == variant)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    numbers: Counter[tuple[str, str]] = Counter()
    for problem in problems(item, form):
        for spec in item.kernels_for(problem):
            for row in _rows(item, spec, problem, form, target, facts):
                key = spec.name, row.pop("hash")
                if key not in found:
                    numbers[spec.name, problem.mode] += 1
                    found[key] = {**row, "variant": numbers[spec.name, problem.mode]}
    return list(found.values())


def _rows(
    item: Implementation, spec: KernelSpec, problem: Problem, form: Form, target: Target, facts: Path
) -> Iterator[dict[str, Any]]:
    row = {
        "implementation": item.name,
        "kernel": spec.name,
        "target": target.name,
        **asdict(form),
        "mask": problem.mask.name,
        "mode": problem.mode,
        "triton": triton.__version__,
    }
    if spec.variants is None:
        return
    for launch in spec.variants(problem, target.name):
        try:
            compiled = compile_launch(spec.function(), launch, target, facts)
        except (CompilationFailed, TypeError) as error:
            yield {**row, "hash": str(error), "error": str(error)}
        else:
            yield {**row, "hash": compiled.hash, **describe(compiled, target)}


def _answer(request: dict[str, Any], facts: Path) -> Any:
    if "target" not in request:
        return implementations(request["name"])
    form, target = Form(**request["form"]), find_target(request["target"])
    return rows(request["name"], request["variant"], form, target, facts)


def main(facts: Path) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an implementation or the compiler prints goes elsewhere
    for line in sys.stdin:
        try:
            said = {"answer": _answer(json.loads(line), facts)}
        except UsageError as error:
            said = {"error": str(error)}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
