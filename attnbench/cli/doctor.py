"""`attnbench doctor`: what this machine can measure, and why not the rest. In: the machine. Out: a table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .output import print_json, print_table


def doctor(json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False) -> None:
    """Say what this machine can measure, why not the rest, and which commands would change that."""
    from dataclasses import asdict

    from attnbench.device.probes import probes
    from attnbench.measure.dram.trial import dram_probes

    found = [asdict(probe) for probe in (*probes(), *dram_probes())]
    facts = _facts()
    if json:
        print_json({"machine": facts, "measurements": found})
        return
    lines = [{"fact": name, "value": value} for name, value in _lines(facts)]
    print_table(lines, ["fact", "value"], header=False)
    typer.echo()
    rows = [
        {**probe, "here": "yes" if probe["available"] else "no", "why": probe["detail"]} for probe in found
    ]
    print_table(rows, ["quantity", "backend", "here", "why"])
    _print_commands(found)


def _print_commands(found: list[dict[str, Any]]) -> None:
    """Print what would make more work: each command once and whole, under the backends that wait for it."""
    waiting: dict[str, list[str]] = {}
    for probe in found:
        if probe["fix"] is not None:
            waiting.setdefault(probe["fix"], []).append(f"{probe['quantity']} {probe['backend']}")
    if waiting:
        typer.echo(f"\n{'A command' if len(waiting) == 1 else 'Commands'} that would make more work:")
    for command, backends in waiting.items():
        typer.echo(f"  {', '.join(backends)}\n    {command}")


def _facts() -> dict[str, Any]:
    from attnbench.device.environment import environment, versions
    from attnbench.device.limits import default_memory_limit_bytes

    return {**environment(), "versions": versions(), "memory_limit_bytes": default_memory_limit_bytes()}


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """What a person wants to know first."""
    from attnbench.render.numbers import format_bytes

    def text_of_bytes(count: int | None) -> str:
        return "unknown" if count is None else format_bytes(count)

    cpu = facts["cpu"]
    cache, memory = text_of_bytes(cpu["l3_bytes"]), text_of_bytes(cpu["memory_bytes"])
    load = "unknown" if facts["load_average"] is None else f"{facts['load_average']:.2f} over the last minute"
    gpus = [f"{gpu['name']} ({text_of_bytes(gpu['facts'].get('memory_bytes'))})" for gpu in facts["gpus"]]
    return [
        (
            "processor",
            f"{cpu['model']}, {cpu['logical_cores']} cores, last-level cache {cache}",
        ),
        ("governor", facts["cpu_governor"] or "unknown"),
        ("threads", f"{facts['default_threads']} ({facts['default_threads_reason']})"),
        (
            "memory",
            f"{memory}, limit of a case {text_of_bytes(facts['memory_limit_bytes'])}",
        ),
        ("load", load),
        ("GPU", ", ".join(gpus) or "none"),
        ("versions", ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if number)),
    ]
