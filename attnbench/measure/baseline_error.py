"""The baseline's error as a property of the problem, not of one computation. In: the plain computation,
rounded as often as asked, and its truth. Out: of each tensor the result that is farthest from the truth.

Where few rows are near a tie, as with large logits, the largest error is that of a handful of scores, and one
computation may round just those luckily; a multiple of its error would forbid what another order of the same
sums does. Two roundings are always compared, more where it is their error and not the floor that sets the
budget. Nothing of it depends on the implementation under test.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .agreement import budget_floor, multiple_of

Results = Mapping[str, Tensor | None]
"""Tensors by name; None where there is no such tensor."""

FEWEST, MOST = 2, 32
PAIRS = 1 << 22
"""Scores that all roundings beyond the fewest may cost: less than a second on one core."""
MANY_PAIRS = 1 << 25
"""Scores from which on one rounding has to do: some seconds on one core."""
SETTLED = 4
"""While m times the error is at most so many floors, the floor is a fifth of the budget or more."""


def _largest_error(result: Tensor, truth: Tensor) -> float:
    if not truth.numel():
        return 0.0
    # In place: at a million tokens each copy is half a gigabyte.
    difference = result.detach().to(truth.dtype, copy=True).sub_(truth).abs_()
    return float(difference.nan_to_num_(nan=0, posinf=0).max())


def _is_settled(errors: Mapping[str, float], truth: Mapping[str, Tensor], dtype: torch.dtype) -> bool:
    def floors(name: str) -> float:
        size = float(truth[name].abs().nan_to_num(posinf=0).max()) if truth[name].numel() else 0.0
        return multiple_of(name) * errors[name] / budget_floor(size, dtype)

    return all(floors(name) <= SETTLED for name in errors)


def affordable_roundings(pairs: int) -> int:
    """Return how often a computation of so many scores may be rounded: once where it costs seconds."""
    if pairs > MANY_PAIRS:
        return 1
    return max(FEWEST, min(MOST, PAIRS // max(1, pairs)))


def farthest(
    evaluate: Callable[[int], Results], truth: Results, *, dtype: torch.dtype, most: int
) -> dict[str, Tensor]:
    """Return each tensor of the plain computation as the rounding gave it that is farthest from the truth.

    Args:
        evaluate: the plain computation, rounded the given way (0, 1, 2, …), by name of tensor.
        truth: float64, by name.
        dtype: of the case.
        most: evaluations.
    """
    exact = {name: tensor for name, tensor in truth.items() if tensor is not None}
    kept: dict[str, Tensor] = {}
    errors: dict[str, float] = {}
    for rounding in range(most):
        if rounding >= FEWEST and _is_settled(errors, exact, dtype):
            break
        for name, result in evaluate(rounding).items():
            if result is None or name not in exact:
                continue
            error = _largest_error(result, exact[name])
            if name not in kept or error > errors[name]:
                kept[name], errors[name] = result, error
    return kept
