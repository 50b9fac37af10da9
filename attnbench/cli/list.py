"""`attnbench list`: what there is to choose from. In: a topic, or none for all. Out: tables, or JSON."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from attnbench.contract.errors import UsageError, nearest

from .output import print_json, print_table

Row = dict[str, Any]


class Topic(NamedTuple):
    """Where the rows come from, and which of their keys the table shows."""

    rows: Callable[[], list[Row]]
    columns: tuple[str, ...]


def _implementations() -> list[Row]:
    from attnbench.contract.discovery import broken_implementations, find_implementations

    rows: list[Row] = [
        {
            "name": item.name,
            "status": "usable",
            "semantics": item.semantics.name,
            "time": item.complexity.time,
            "memory": item.complexity.memory,
            "summary": item.summary,
            "paper": item.paper,
            "supports": sorted(item.supports),
            "options": dict(item.options),
        }
        for item in find_implementations().values()
    ]
    rows += [
        {"name": name, "status": "broken", "summary": f"can't be used here: {reason}"}
        for name, reason in broken_implementations().items()
    ]
    return sorted(rows, key=lambda row: (row["status"] == "broken", row["name"]))


def _suites() -> list[Row]:
    from attnbench.plan.suite import load_suite, suite_names

    rows = []
    for name in suite_names():
        try:
            suite = load_suite(name, device_must_exist=False)
            rows.append({"name": name, "cases": len(suite.cases), "description": suite.description})
        except UsageError as error:
            rows.append({"name": name, "cases": None, "description": f"can't be read: {error}"})
    return rows


def _presets() -> list[Row]:
    from dataclasses import asdict

    from torch._subclasses.fake_tensor import FakeTensorMode

    from attnbench.model.builder import build_model
    from attnbench.model.presets import load_preset, preset_names, preset_source, preset_weights

    rows = []
    for name in preset_names():
        config = load_preset(name)
        with FakeTensorMode():  # counted on the model itself, without its memory
            params = build_model(name).param_count
        rows.append(
            {
                "name": name,
                **asdict(config),
                "mask": config.mask.to_dict(),
                "encoder_mask": config.encoder_mask.to_dict(),
                "layers": config.num_layers,
                "params": params,
                "weights": "trained" if preset_weights(name) else "drawn",
                "source": preset_source(name),
            }
        )
    return rows


def _devices() -> list[Row]:
    from attnbench.device.hardware import cpu, cuda_devices, default_threads

    processor = cpu()
    threads, reason = default_threads()
    rows: list[Row] = [
        {
            "name": "cpu",
            "device": processor.model,
            "memory_bytes": processor.memory_limit_bytes or processor.memory_bytes,
            "threads": threads,
            "about": reason,
        }
    ]
    for gpu in cuda_devices():
        rows.append({"name": f"cuda:{gpu.index}", "device": gpu.name, "uuid": gpu.uuid, **gpu.facts})
    return rows


def _metrics() -> list[Row]:
    from attnbench.plan.settings import METRIC_SUMMARIES

    return [{"name": name, "summary": summary} for name, summary in METRIC_SUMMARIES.items()]


def _masks() -> list[Row]:
    from dataclasses import fields

    from attnbench.contract.masks import mask_types

    return [
        {
            "name": name,
            "parameters": [field.name for field in fields(kind)],
            "summary": (kind.__doc__ or "").strip().partition("\n")[0],
        }
        for name, kind in mask_types().items()
    ]


TOPICS = {
    "implementations": Topic(_implementations, ("name", "semantics", "time", "memory", "summary")),
    "suites": Topic(_suites, ("name", "cases", "description")),
    "presets": Topic(
        _presets,
        ("name", "architecture", "params", "layers", "dim", "num_heads", "num_kv_heads", "weights", "source"),
    ),
    "devices": Topic(_devices, ("name", "device", "memory_bytes", "about")),
    "metrics": Topic(_metrics, ("name", "summary")),
    "masks": Topic(_masks, ("name", "parameters", "summary")),
}


def list_topics(
    topic: Annotated[str | None, typer.Argument(help=f"One of {', '.join(TOPICS)}; all without.")] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """List implementations, suites, presets, devices, metrics or masks."""
    if topic is not None and topic not in TOPICS:
        known = ", ".join(TOPICS)
        raise UsageError(f"there is no {topic!r} to list{nearest(topic, TOPICS)}; there are {known}")
    chosen = {name: TOPICS[name].rows() for name in ([topic] if topic else TOPICS)}
    if json:
        print_json(chosen[topic] if topic else chosen)
        return
    for number, (name, rows) in enumerate(chosen.items()):
        if topic is None:
            typer.echo(f"{'' if number == 0 else chr(10)}{name.upper()}")
        _print(name, rows)


def _print(name: str, rows: list[Row]) -> None:
    from attnbench.render.numbers import format_bytes, format_count

    columns = TOPICS[name].columns

    def text(column: str, value: Any) -> str:
        if value is None:
            return ""
        if column.endswith("_bytes"):
            return format_bytes(value)
        if column == "params":
            return format_count(value)
        return ", ".join(value) if isinstance(value, list) else str(value)

    titles = {column: column.removeprefix("num_").removesuffix("_heads") for column in columns}
    shown = [{titles[column]: text(column, row.get(column)) for column in columns} for row in rows]
    numbers = [titles[column] for column in columns if any(isinstance(row.get(column), int) for row in rows)]
    print_table(shown, list(titles.values()), right=numbers)
