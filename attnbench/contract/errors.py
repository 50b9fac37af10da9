"""The error a person caused.

One clear line that names the thing, what was expected, and the nearest valid name.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(ValueError):
    """A mistake in what was asked for; the command line prints it as one line and exits with 2."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest of ``choices``, or an empty string."""
    matches = get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
