"""`attnbench kernels`: what kernels compile to, without a GPU. In: targets. Out: tables or JSON."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import print_json, print_table

if TYPE_CHECKING:
    from attnbench.device.kernel_forms import Form

Row = dict[str, Any]
USUAL_HEAD_DIMS = (64, 128)
COLUMNS = ("target", "regs", "spill", "shared", "blocks/SM", "access", "tensor cores", "loop", "/1024")
LEGEND = """\
spill: bytes of a thread. blocks/SM: resident blocks, and what allows no more.
Of the main loop: access: bytes of global memory a thread takes at a time; loop:
instructions; /1024: those a warp issues for 1024 multiply-adds of its products."""


def kernels(
    name: Annotated[
        str | None, typer.Argument(help="An implementation or ./file.py; all that have kernels without.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Such as sm_90; repeatable. Default: all.")
    ] = None,
    head_dim: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Head width; repeatable. Default: 64 and 128.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Type; repeatable. Default: bfloat16.")
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="causal, full or sliding-window; repeatable. Default: what suits."),
    ] = None,
    ragged: Annotated[
        bool, typer.Option("--ragged", help="With odd lengths, grouped heads and key lengths.")
    ] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with what --json printed; 1 if something differs."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> int:
    """Compile kernels ahead of time: registers, spills, shared memory, instructions."""
    from attnbench.contract.errors import UsageError
    from attnbench.device.kernel_baseline import read_baseline
    from attnbench.device.kernels import Compilers, in_order
    from attnbench.device.targets import find_target, targets

    names = [find_target(one).name for one in target or targets()]
    forms = _forms(head_dim or USUAL_HEAD_DIMS, dtype or ["bfloat16"], mask or [None], ragged)
    then = None if baseline is None else read_baseline(baseline)
    with Compilers() as compilers:
        tasks = compilers.find_tasks(name, names, forms)
        rows = in_order(tasks, dict(_with_progress(compilers.inspect(tasks), len(tasks))))
    if not rows:
        asked = ", ".join(map(str, forms))
        raise UsageError(f"{name or 'every implementation'} refuses {asked}, or launches no kernel for it")
    if json:
        print_json(rows)
    elif then is None:
        _print(rows)
    failed = any("error" in row for row in rows)
    return int((then is not None and _differs(then, rows)) or failed)


def _forms(
    head_dims: Iterable[int], dtypes: Iterable[str], masks: Iterable[str | None], ragged: bool
) -> list[Form]:
    """Return the product of what was asked for.

    Raises:
        UsageError: a type or mask that isn't there, or a width below 1.
    """
    from attnbench.contract.errors import UsageError, nearest
    from attnbench.contract.problem import DTYPE_BYTES
    from attnbench.device.kernel_forms import MASKS, Form

    for kind, given, known in (("dtype", dtypes, DTYPE_BYTES), ("mask", masks, MASKS)):
        for one in given:
            if one is not None and one not in known:
                raise UsageError(f"unknown {kind} {one!r}{nearest(one, known)}; there are {', '.join(known)}")
    for head_dim in head_dims:
        if head_dim < 1:
            raise UsageError(f"--head-dim must be at least 1, not {head_dim}")
    return [
        Form(head_dim=head_dim, dtype=dtype, mask=mask, ragged=ragged)
        for dtype in dtypes
        for head_dim in head_dims
        for mask in masks
    ]


def _with_progress(done: Iterable[Any], total: int) -> Iterable[Any]:
    """Hand through; on a terminal, a bar on stderr says how far it is."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        done, "compiling", total=total, console=console, transient=True, disable=not console.is_terminal
    )


def _print(rows: list[Row]) -> None:
    from attnbench.device.kernel_baseline import form_of

    def heading(row: Row) -> str:
        return f"{row['implementation']}  {row['kernel'] or ''}  {form_of(row)}"

    for title, group in groupby(rows, key=heading):
        of_targets = list(group)
        typer.echo(title)
        compiled = [_cells(row) for row in of_targets if "error" not in row]
        if compiled:
            print_table(compiled, COLUMNS, right=[name for name in COLUMNS if name != "target"])
        for row in of_targets:
            for remark in row.get("warnings", ()) if "error" not in row else (row["error"],):
                typer.echo(f"  {row['target']}: {remark}")
        typer.echo()
    typer.echo(LEGEND)


def _cells(row: Row) -> dict[str, str]:
    from attnbench.render.numbers import ABSENT, format_bytes

    loop = row["main_loop"]
    ratio = row["instructions_per_1024_multiply_adds"]
    limit = row["limited_by"].removesuffix(" memory")
    return {
        "target": row["target"],
        "regs": str(row["registers"]),
        "spill": str(row["spill_bytes"]),
        "shared": format_bytes(row["shared_memory_bytes"]),
        "blocks/SM": f"{row['blocks_per_sm']} {limit}",
        "access": _access(loop or row["instructions"]),
        "tensor cores": _tensor_cores(row["instructions"] if loop is None else loop),
        "loop": ABSENT if loop is None else str(loop["total"]),
        "/1024": ABSENT if ratio is None else f"{ratio:.2f}",
    }


def _access(kinds: dict[str, int]) -> str:
    """Return how global memory is read and written: ``16``, ``4-16``, ``TMA``."""
    from attnbench.render.numbers import ABSENT

    sized = ("global_load_", "global_store_", "async_copy_")
    widths = sorted({int(kind.rpartition("_")[2]) for kind in kinds if kind.startswith(sized)})
    said = [f"{widths[0]}-{widths[-1]}" if len(widths) > 1 else f"{widths[0]}"] if widths else []
    if any(kind.startswith(("tma_", "bulk_")) for kind in kinds):
        said.append("TMA")
    return "+".join(said) or ABSENT


def _tensor_cores(kinds: dict[str, int]) -> str:
    from attnbench.device.machine_code import MATRIX_KINDS
    from attnbench.render.numbers import ABSENT

    return "+".join(f"{kinds[kind]} {kind}" for kind in MATRIX_KINDS if kind in kinds) or ABSENT


def _differs(then: list[Row], rows: list[Row]) -> bool:
    """Print what differs from the baseline; return whether any of it is a fault."""
    from attnbench.device.kernel_baseline import differences
    from attnbench.device.kernels import identity

    known = {identity(row) for row in then}
    compared = sum(identity(row) in known for row in rows)
    found = list(differences(then, rows))
    for one in found:
        typer.echo(f"{one.row}: {one.fact} {one.then} -> {one.now}", err=True)
    ours = {row["triton"] for row in rows if "triton" in row}
    theirs = {row["triton"] for row in then if "triton" in row}
    said = f"{compared} of {len(rows)} kernels are in the baseline, {len(found)} facts differ"
    if ours != theirs:
        said += (
            f"; it is of Triton {', '.join(sorted(theirs))}, this is {', '.join(sorted(ours))}: not a fault"
        )
    typer.echo(said, err=True)
    return any(one.fault for one in found)
