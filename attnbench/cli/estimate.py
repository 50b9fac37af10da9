"""`attnbench estimate`: what a preset would take. In: a preset, lengths. Out: bytes, FLOPs, least times."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import print_json, print_table

if TYPE_CHECKING:
    from attnbench.measure.estimate import Estimate, LowerBound

WIDTH = 80
MODE_COLUMNS = {"fwd": "prefill", "fwd_bwd": "training", "decode": "one token"}
SCORES = ("scores a head", "scores in all")
NOTES = (
    "Scores are those of a head of a layer, and of all heads and layers, where an implementation holds them "
    "at all. Activations of inference are alive at the peak of one forward pass over all tokens, logits "
    "included; those of training are what it keeps for the backward pass.",
    "FLOPs are on visible pairs, 2 for each multiply-add; training is a forward and a backward pass.",
    "The least time is the longer of FLOPs at the maker's dense peak and compulsory bytes at its bandwidth: "
    "weights, tokens and cache read once, results written once. What an implementation moves beyond "
    "that, such as its scores, is not in it.",
)


def estimate(
    preset: Annotated[str, typer.Argument(help="A preset's name; see `attnbench list presets`.")],
    seqlen: Annotated[
        list[str] | None,
        typer.Option(metavar="N", help="Tokens, such as 128k; repeatable. Default: the preset's longest."),
    ] = None,
    implementation: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Default: the first five; repeatable.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="h100, a100-sxm4-80gb, …; default: all; repeatable."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of weights and activations.")] = "bfloat16",
    batch: Annotated[int, typer.Option(help="Rows.")] = 1,
    window: Annotated[
        int, typer.Option(help="Keys that a query sees, where an implementation takes a window alone.")
    ] = 4096,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """Estimate memory, FLOPs and least times of a preset from formulas; runs nothing."""
    from attnbench.contract.problem import DTYPE_BYTES
    from attnbench.measure.estimate import THE_FIVE, device_keys
    from attnbench.measure.estimate import estimate as of_one
    from attnbench.model.presets import load_preset
    from attnbench.model.sizes import num_parameters
    from attnbench.plan.lengths import parse_length

    config = load_preset(preset)
    lengths = dict.fromkeys(parse_length(one) for one in seqlen or [str(config.max_seqlen)])
    devices = tuple(dict.fromkeys(key for name in device or () for key in device_keys(name))) or None
    found = [
        of_one(preset, length, name, dtype=dtype, batch=batch, window=window, devices=devices)
        for length in lengths
        for name in dict.fromkeys(implementation or THE_FIVE)
    ]
    parameters = num_parameters(config)
    told = {
        "preset": preset,
        "dtype": dtype,
        "batch": batch,
        "parameters": parameters,
        "weight_bytes": parameters * DTYPE_BYTES[dtype],
    }
    if json:
        import msgspec

        print_json({**told, "estimates": msgspec.to_builtins(found)})
    else:
        _print(told, found)


def _print(told: dict[str, Any], estimates: list[Estimate]) -> None:
    from attnbench.render.numbers import format_bytes, format_count, format_seqlen, plural

    size = f"{format_count(told['parameters'])} parameters, {format_bytes(told['weight_bytes'])}"
    typer.echo(f"{told['preset']}: {size} in {told['dtype']}; {plural(told['batch'], 'row')}")
    for seqlen in dict.fromkeys(one.seqlen for one in estimates):
        typer.echo(f"\n{format_seqlen(seqlen)} tokens")
        _print_length([one for one in estimates if one.seqlen == seqlen])
    for note in NOTES:
        typer.echo(f"\n{fill(note, WIDTH)}")


def _print_length(estimates: list[Estimate]) -> None:
    able = [one for one in estimates if not one.unsupported]
    if able:
        print_table(
            [_memory_row(one) for one in able],
            ["memory", *SCORES, "cache", "inference", "training"],
            right=[*SCORES, "cache", "inference", "training"],
        )
        columns = ["prefill", "its attention", "training", "one token"]
        typer.echo()
        print_table([_flops_row(one) for one in able], ["FLOPs", *columns], right=columns)
        _print_bounds(able)
        _print_masks(able)
    for one in estimates:
        if one.unsupported:
            typer.echo(
                fill(f"{one.implementation}: {'; '.join(one.unsupported)}", WIDTH, subsequent_indent="  ")
            )


def _print_masks(estimates: list[Estimate]) -> None:
    """Say which masks there are where they differ."""
    masks: dict[str, list[str]] = {}
    for one in estimates:
        masks.setdefault(one.mask, []).append(one.implementation)
    if len(masks) > 1:
        typer.echo()
        for mask, names in masks.items():
            typer.echo(fill(f"{mask}: {', '.join(names)}", WIDTH, subsequent_indent="  "))


def _memory_row(one: Estimate) -> dict[str, str]:
    from attnbench.render.numbers import ABSENT, format_bytes

    figures = {
        SCORES[0]: one.score_bytes_per_head,
        SCORES[1]: one.score_bytes,
        "cache": one.cache_bytes,
        "inference": one.inference_activation_bytes,
        "training": one.training_activation_bytes,
    }
    texts = {name: ABSENT if value is None else format_bytes(value) for name, value in figures.items()}
    texts |= {name: "never held" for name in SCORES if figures[name] == 0}
    return {"memory": one.implementation, **texts}


def _flops_row(one: Estimate) -> dict[str, str]:
    from attnbench.render.numbers import ABSENT, format_count

    row = dict.fromkeys(MODE_COLUMNS.values(), ABSENT)
    row |= {MODE_COLUMNS[mode]: format_count(work.flops) for mode, work in one.work.items()}
    row["its attention"] = format_count(one.work["fwd"].attention_flops)
    return {"FLOPs": one.implementation, **row}


def _print_bounds(estimates: list[Estimate]) -> None:
    """Print a table of devices for all implementations of equal bounds."""
    alike: dict[tuple[LowerBound, ...], list[str]] = {}
    for one in estimates:
        alike.setdefault(tuple(one.bounds), []).append(one.implementation)
    columns = ["prefill", "its attention", "training", "one token"]
    for bounds, names in alike.items():
        rows: dict[str, dict[str, str]] = {}
        for bound in bounds:
            rows.setdefault(bound.device, {"device": bound.device})[_column(bound)] = _time(bound)
        typer.echo(f"\n{fill('Least time: ' + ', '.join(names), WIDTH, subsequent_indent='  ')}")
        if rows:
            print_table(rows.values(), ["device", *_given(columns, rows.values())], right=columns)
        else:
            typer.echo("no device has a printed rate for products of this type")


def _column(bound: LowerBound) -> str:
    if bound.part == "attention":
        return "its attention" if bound.mode == "fwd" else ""
    return MODE_COLUMNS[bound.mode]


def _time(bound: LowerBound) -> str:
    from attnbench.render.numbers import format_ms

    return f"{format_ms(bound.lower_bound_ms)} {bound.limit}"


def _given(columns: Iterable[str], rows: Iterable[dict[str, str]]) -> list[str]:
    known = {name for row in rows for name in row}
    return [column for column in columns if column in known]
