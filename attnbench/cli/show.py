"""`attnbench show`: what a suite would run. In: a suite. Out: its cases and their predicted cost."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import fits, print_json, print_table

if TYPE_CHECKING:
    from attnbench.measure.forecast import Forecast
    from attnbench.plan.case import Case
    from attnbench.plan.suite import Suite

ROW = ("implementation", "seqlen")
"""What a row says itself where a table is split to fit the terminal."""


def show(
    suite: Annotated[str, typer.Argument(help="A suite's name or a TOML file; see `attnbench list suites`.")],
    implementation: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Keep or put in this implementation; repeatable.")
    ] = None,
    seqlen: Annotated[
        list[str] | None, typer.Option(metavar="N", help="Replace the lengths, such as 4k; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:i.")] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Show a suite's cases and their predicted cost; runs nothing."""
    from attnbench.measure.forecast import forecast
    from attnbench.plan.suite import load_suite

    loaded = load_suite(suite, implementations=implementation or (), seqlens=seqlen or (), device=device)
    forecasts = [forecast(case) for case in _with_progress(loaded.cases)]
    if json:
        print_json(_plain(loaded, forecasts))
    else:
        _print(loaded, forecasts)


def _with_progress(cases: Iterable[Case]) -> Iterable[Case]:
    """Hand the cases through; on a terminal, a bar on stderr says how far they are."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(cases, "predicting", console=console, transient=True, disable=not console.is_terminal)


def _plain(suite: Suite, forecasts: list[Forecast]) -> dict[str, Any]:
    import msgspec

    return {
        "name": suite.name,
        "description": suite.description,
        "source": suite.source,
        "device_index": suite.device_index,
        "measure": msgspec.to_builtins(suite.measure),
        "cases": [
            {"case_id": case.case_id, **msgspec.to_builtins(foreseen), "case": case.to_dict()}
            for case, foreseen in zip(suite.cases, forecasts, strict=True)
        ],
    }


def _print(suite: Suite, forecasts: list[Forecast]) -> None:
    """Print a table for each level, and the reasons for what is missing."""
    levels: dict[str, list[tuple[dict[str, str], Forecast]]] = {}
    for case, foreseen in zip(suite.cases, forecasts, strict=True):
        parts = case.id_parts()
        levels.setdefault(parts["level"], []).append((parts, foreseen))
    notes: dict[str, int] = {}
    typer.echo(fill(": ".join(filter(None, (suite.name, suite.description))), 80, break_long_words=False))
    for rows in levels.values():
        typer.echo()
        _print_level(rows, notes)
    for reason, number in notes.items():
        typer.echo(f"{'' if number > 1 else chr(10)}{number}: {reason}")


def _print_level(rows: list[tuple[dict[str, str], Forecast]], notes: dict[str, int]) -> None:
    """Print what the cases share, then a row per case of what differs; ``notes`` numbers the reasons.

    Where that is too wide, there is a table for each group that differs in implementation and length alone.
    """
    from attnbench.render.numbers import ABSENT, format_bytes, format_count, plural

    figures = {
        "predicted_peak_bytes": ("peak", format_bytes),
        "flops": ("FLOPs", format_count),
        "compulsory_bytes": ("compulsory", format_bytes),
    }
    if not rows[0][0]["level"].startswith("attention"):
        del figures["flops"], figures["compulsory_bytes"]
        figures |= {
            "executed_flops": ("executed FLOPs", format_count),
            "operand_bytes": ("operands", format_bytes),
        }
    names = list(dict.fromkeys(name for parts, _ in rows for name in parts))
    varying = [name for name in names if len({parts.get(name) for parts, _ in rows}) > 1]
    shown = []
    for parts, foreseen in rows:
        row = {name: parts.get(name, "") for name in varying}
        for figure, (column, text_of) in figures.items():
            row[column] = ABSENT if (value := getattr(foreseen, figure)) is None else text_of(value)
        lacking = [reason for name, reason in foreseen.unavailable.items() if name in figures]
        reasons = dict.fromkeys([*foreseen.unsupported, *lacking])
        row["note"] = " ".join(str(notes.setdefault(reason, len(notes) + 1)) for reason in reasons)
        shown.append(row)
    shared = ", ".join(text for name, text in rows[0][0].items() if name not in varying)
    typer.echo(
        fill(f"{plural(len(rows), 'case')}, {shared}", 80, subsequent_indent="  ", break_long_words=False)
    )
    columns = [column for column, _ in figures.values()]
    noted = [*columns, *(["note"] if any(row["note"] for row in shown) else [])]
    if fits(shown, [*varying, *noted], right=columns):
        print_table(shown, [*varying, *noted], right=columns)
        return
    own = [name for name in varying if name in ROW]
    groups: dict[str, list[dict[str, str]]] = {}
    for row in shown:
        groups.setdefault(" ".join(row[name] for name in varying if name not in own), []).append(row)
    for title, members in groups.items():
        typer.echo(f"\n{title}" if title else "")
        print_table(members, [*own, *noted], right=columns)
