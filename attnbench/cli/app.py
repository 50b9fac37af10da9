"""The typer application and `main`. In: arguments. Out: an exit code; errors become one line on stderr.

Exit codes: 0 fine; 1 a failure that a command reports; 2 a usage error; 130 interrupted. Help is plain text,
since importing rich would double its time; commands import what is heavy inside their functions.
"""

import errno
import os
import sys
from typing import Annotated, NoReturn

import typer

from attnbench.contract.errors import UsageError

from .claims import claims
from .doctor import doctor
from .estimate import estimate
from .kernels import kernels
from .list import list_topics
from .report import report
from .run import run
from .show import show

USAGE_ERROR, INTERRUPTED = 2, 130

app = typer.Typer(
    name="attnbench",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(report)
app.command("list")(list_topics)
app.command()(show)
app.command()(estimate)
app.command()(doctor)
app.command()(kernels)
app.command()(claims)


def _print_version(wanted: bool) -> None:
    if wanted:
        from attnbench import __version__

        typer.echo(f"attnbench {__version__}")
        raise typer.Exit


@app.callback()
def attnbench(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Benchmark and complexity analysis of attention: latency, bytes, memory, error."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a character shows another one
            stream.reconfigure(errors="replace")
    sys.exit(_exit_code(arguments))


def _exit_code(arguments: list[str] | None) -> int:
    """Run one command; what it returns, or raises, is the code."""
    try:
        code = app(arguments, standalone_mode=False, prog_name="attnbench")
        sys.stdout.flush()
    except UsageError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # What is still buffered finds no room either, and Python would say so once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _complain(f"the output can't be written: {error.strerror}")
    except Exception as error:
        # Typer complains with click's exceptions, which its newer versions carry inside: no common import.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        message = format_message()
        if message.startswith("Usage:"):  # no arguments at all
            typer.echo(message, err=True)
            return USAGE_ERROR
        return _complain(message[:1].lower() + message[1:])
    return code if isinstance(code, int) else 0


def _complain(message: str) -> int:
    typer.echo(f"attnbench: {' '.join(message.split())}", err=True)
    return USAGE_ERROR
