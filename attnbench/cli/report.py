"""`attnbench report`: runs become pages, pictures and tables. In: run folders. Out: files; the path of the
page on stdout.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are shown side by side.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Where to write; by default the first run."),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", metavar="NAMES", help="Comma-separated: html, md, png, svg, csv.")
    ] = "html,md,png,svg,csv",
) -> None:
    """Write a report about one run, or about several side by side."""
    from attnbench.render.files import parse_formats, write_report
    from attnbench.run.store import load_run

    wanted = parse_formats(formats)
    loaded = [load_run(path) for path in runs]
    for run in loaded:
        for problem in run.problems:
            typer.echo(f"{run.path}: {problem}", err=True)
    with _library_warnings_as_notes():
        written = write_report(loaded, output or loaded[0].path, wanted)
    for path in written:
        typer.echo(str(path))


@contextmanager
def _library_warnings_as_notes() -> Iterator[None]:
    """What a drawing library has to say is one line, without the place in its source."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with warnings.catch_warnings(record=True) as caught:
        yield
    for text in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        typer.echo(f"attnbench: note: {text}", err=True)
