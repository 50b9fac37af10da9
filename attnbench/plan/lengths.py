"""Sequence lengths as people write them. In: ``1024`` or ``"4k"``. Out: an int; k is 1024, everywhere."""

import re

from attnbench.contract.errors import UsageError

MOST_DIGITS = 40


def parse_length(value: int | str) -> int:
    """Return the number of tokens that ``value`` stands for: ``"4k"`` is ``4 * 1024``.

    Raises:
        UsageError: neither a whole number that is not negative nor one followed by ``k``.
    """
    match = re.fullmatch(r"([0-9]+)([kK]?)", str(value).strip())
    if isinstance(value, bool) or not match:
        raise UsageError(
            f"{value!r} is not a length; expected a whole number such as 4096, or '4k' (k = 1024)"
        )
    if len(match[1]) > MOST_DIGITS:
        raise UsageError(f"a length of {len(match[1])} digits is not one that anything can have")
    return int(match[1]) * (1024 if match[2] else 1)
