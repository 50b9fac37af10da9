"""The command line: one thin module per command. In: arguments. Out: tables or JSON, and an exit code."""

from .app import main

__all__ = ["main"]
