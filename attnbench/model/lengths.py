"""Lengths of the rows of a padded batch: whatever a caller gives in, checked whole numbers out."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench.contract.errors import UsageError

Lengths = Sequence[int] | Tensor
"""A whole number for each row, or a padding mask ``[B, S]`` that is true where a token is valid."""


def sizes(x: Tensor) -> tuple[int, int]:
    """Batch and length of ``x [B, S, …]``, as numbers in a program that PyTorch compiles too, not symbols."""
    return operator.index(x.shape[0]), operator.index(x.shape[1])


def row_lengths(
    lengths: Lengths | None, batch: int, longest: int, *, name: str = "lengths"
) -> tuple[int, ...]:
    """The number of valid positions of each row, ``longest`` for all if ``lengths`` is None.

    Rows are padded at their end. Lengths are kept as plain integers, so that no layer has to ask a device.

    Raises:
        UsageError: not one whole number from 0 to ``longest`` for each row, or a mask of another shape or
            with padding before a valid position; ``name`` is what the caller calls the argument.
    """
    if lengths is None:
        return (longest,) * batch
    if isinstance(lengths, Tensor) and lengths.dtype == torch.bool:
        return _lengths_of_mask(lengths, batch, longest, name)
    values: Any = lengths
    if isinstance(lengths, Tensor):
        values = lengths.tolist()
    elif isinstance(lengths, Sequence):
        values = list(lengths)
    whole = isinstance(values, list) and all(type(n) is int and 0 <= n <= longest for n in values)
    if not whole or len(values) != batch:
        raise UsageError(
            f"{name}: {batch} whole numbers from 0 to {longest} are needed, one for each row, not {values}"
        )
    return tuple(values)


def _lengths_of_mask(mask: Tensor, batch: int, longest: int, name: str) -> tuple[int, ...]:
    if mask.shape != (batch, longest):
        raise UsageError(
            f"{name}: a padding mask of shape {[batch, longest]} is needed, not {list(mask.shape)}"
        )
    counts = mask.sum(dim=1)
    wrong = (mask != (torch.arange(longest, device=mask.device) < counts.unsqueeze(1))).any(dim=1)
    if wrong.any():
        raise UsageError(
            f"{name}: a padding mask is true first and false after, rows are padded at their end; "
            f"row {int(wrong.nonzero()[0])} has padding before a valid position"
        )
    return tuple(counts.tolist())
