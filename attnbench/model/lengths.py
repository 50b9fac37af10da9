"""Lengths of the rows of a padded batch: whatever a caller gives in, checked whole numbers out."""

from collections.abc import Sequence

from torch import Tensor

from attnbench.contract.errors import UsageError

Lengths = Sequence[int] | Tensor


def row_lengths(lengths: Lengths | None, batch: int, longest: int) -> tuple[int, ...]:
    """The number of valid positions of each row, ``longest`` for all if ``lengths`` is None.

    Rows are padded at their end. Lengths are kept as plain integers, so that no layer has to ask a device.

    Raises:
        UsageError: not one whole number from 0 to ``longest`` for each row.
    """
    if lengths is None:
        return (longest,) * batch
    values = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    whole = isinstance(values, list) and all(isinstance(n, int) and 0 <= n <= longest for n in values)
    if not whole or len(values) != batch:
        raise UsageError(
            f"lengths: {batch} whole numbers from 0 to {longest} are needed, one for each row, not {values}"
        )
    return tuple(values)
