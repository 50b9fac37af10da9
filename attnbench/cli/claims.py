"""`attnbench claims`: sentences about attention, checked. In: perhaps a run. Out: verdicts, or JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import print_json

if TYPE_CHECKING:
    from attnbench.analysis.claims import Claim

INTERPRETING = {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}
"""What a process needs that counts what kernels ask for; read when triton and numpy are imported."""
UNMEASURED = 1


def claims(
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="A run folder; its latencies judge what they can."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Check this claim alone; repeatable.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> int:
    """Check what papers and tutorials say of attention. A claim that fails is a finding."""
    os.environ.update(INTERPRETING)
    from attnbench.analysis.claim_runs import measured_in
    from attnbench.analysis.claims import judge, load_claims
    from attnbench.contract.errors import UsageError
    from attnbench.measure.claims.checks import measure_claim
    from attnbench.render.claims import claim_lines
    from attnbench.run.store import load_run

    chosen = load_claims(only or ())
    of_run = {} if run is None else measured_in(load_run(run), chosen)
    rows, unmeasured = [], {}
    for claim in _with_progress(chosen):
        try:
            measured = measure_claim(claim.measure)
        except UsageError as error:  # an implementation that can't be used here; the others can
            unmeasured[claim.id] = str(error)
        else:
            rows.append(judge(claim, {**measured, **of_run.get(claim.id, {})}))
    if json:
        print_json([row.to_dict() for row in rows])
    else:
        for line in claim_lines(rows):
            typer.echo(line)
    for claim_id, why in unmeasured.items():
        typer.echo(f"{claim_id} could not be measured: {why}", err=True)
    return UNMEASURED if unmeasured else 0


def _with_progress(claims: Iterable[Claim]) -> Iterable[Claim]:
    """Hand the claims through; on a terminal, a bar on stderr says how far they are."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(claims, "measuring", console=console, transient=True, disable=not console.is_terminal)
