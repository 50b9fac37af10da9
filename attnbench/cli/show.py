"""`attnbench show`: what a suite would run. In: a suite. Out: its cases and their predicted cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import print_json, print_table

if TYPE_CHECKING:
    from attnbench.plan.case import Case
    from attnbench.plan.suite import Suite


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
    from attnbench.plan.suite import load_suite

    loaded = load_suite(suite, implementations=implementation or (), seqlens=seqlen or (), device=device)
    forecasts = [_forecast(case) for case in loaded.cases]
    if json:
        print_json(_plain(loaded, forecasts))
    else:
        _print(loaded, forecasts)


def _forecast(case: Case) -> dict[str, Any]:
    """Return what is known about a case before it runs: support, peak bytes, FLOPs, compulsory bytes."""
    from attnbench.contract.discovery import get_implementation
    from attnbench.contract.errors import UsageError
    from attnbench.contract.implementation import refusals
    from attnbench.measure.memory import predict_peak_bytes

    forecast: dict[str, Any] = {
        "unsupported": [],
        "predicted_peak_bytes": None,
        "flops": None,
        "compulsory_bytes": None,
        "unavailable": {},
    }
    problem = case.problem()
    try:
        implementation = get_implementation(case.implementation)
        forecast["unsupported"] = refusals(implementation, problem)
    except UsageError as error:
        forecast["unsupported"] = [str(error)]
    if forecast["unsupported"]:
        return forecast
    if case.level == "attention":
        cost = implementation.cost(problem)
        forecast |= {"flops": cost.flops, "compulsory_bytes": cost.compulsory_bytes}
    else:
        reason = f"closed forms describe the attention, not a whole {case.level}"
        forecast["unavailable"] |= {"flops": reason, "compulsory_bytes": reason}
    try:
        forecast["predicted_peak_bytes"] = predict_peak_bytes(case)
    except Exception as error:  # somebody's kernel may refuse fake tensors; the other figures stand
        forecast["unavailable"]["predicted_peak_bytes"] = f"{type(error).__name__}: {error}"
    return forecast


def _plain(suite: Suite, forecasts: list[dict[str, Any]]) -> dict[str, Any]:
    import msgspec

    return {
        "name": suite.name,
        "description": suite.description,
        "source": suite.source,
        "device_index": suite.device_index,
        "measure": msgspec.to_builtins(suite.measure),
        "cases": [
            {"case_id": case.case_id, **forecast, "case": case.to_dict()}
            for case, forecast in zip(suite.cases, forecasts, strict=True)
        ],
    }


def _print(suite: Suite, forecasts: list[dict[str, Any]]) -> None:
    """Print a table for each level, and the reasons for what is missing."""
    levels: dict[str, list[tuple[dict[str, str], dict[str, Any]]]] = {}
    for case, forecast in zip(suite.cases, forecasts, strict=True):
        parts = case.id_parts()
        levels.setdefault(parts["level"], []).append((parts, forecast))
    notes: dict[str, int] = {}
    typer.echo(f"{suite.name}: {suite.description}")
    for rows in levels.values():
        typer.echo()
        _print_level(rows, notes)
    for reason, number in notes.items():
        typer.echo(f"{'' if number > 1 else chr(10)}{number}: {reason}")


def _print_level(rows: list[tuple[dict[str, str], dict[str, Any]]], notes: dict[str, int]) -> None:
    """Print what the cases share, then a row per case of what differs; ``notes`` numbers the reasons."""
    from attnbench.render.numbers import ABSENT, format_bytes, plural

    formats = {
        "predicted_peak_bytes": ("peak", format_bytes),
        "flops": ("FLOPs", _in_thousands),
        "compulsory_bytes": ("compulsory", format_bytes),
    }
    names = list(dict.fromkeys(name for parts, _ in rows for name in parts))
    varying = [name for name in names if len({parts.get(name) for parts, _ in rows}) > 1]
    shown = []
    for parts, forecast in rows:
        row = {name: parts.get(name, "") for name in varying}
        for figure, (column, text_of) in formats.items():
            row[column] = ABSENT if forecast[figure] is None else text_of(forecast[figure])
        reasons = dict.fromkeys([*forecast["unsupported"], *forecast["unavailable"].values()])
        row["note"] = " ".join(str(notes.setdefault(reason, len(notes) + 1)) for reason in reasons)
        shown.append(row)
    shared = ", ".join(text for name, text in rows[0][0].items() if name not in varying)
    typer.echo(f"{plural(len(rows), 'case')}, {shared}")
    figures = [column for column, _ in formats.values()]
    print_table(shown, [*varying, *figures, "note"], right=figures)


def _in_thousands(count: int) -> str:
    """Return a count with a decimal prefix: ``34.4 G``."""
    from attnbench.render.numbers import three_digits

    value, prefix = float(count), ""
    for larger in "kMGTPE":
        if value < 1000:
            break
        value, prefix = value / 1000, larger
    return f"{three_digits(value)} {prefix}".rstrip()
