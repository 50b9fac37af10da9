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
SETTLED = 4
"""While m times the error is at most so many floors, the floor is a fifth of the budget or more."""


def _largest_error(result: Tensor, truth: Tensor) -> float:
    if not truth.numel():
        return 0.0
    # In place: at a million tokens each copy is half a gigabyte.
    difference = result.detach().to(truth.dtype, copy=True).sub_(truth).abs_()
    return float(difference.nan_to_num_(nan=0, posinf=0).max())


def _is_settled(errors: Mapping[str, float], truth: Results, dtype: torch.dtype) -> bool:
    def floors(name: str) -> float:
        exact = truth[name]
        size = float(exact.abs().nan_to_num(posinf=0).max()) if exact is not None and exact.numel() else 0.0
        return multiple_of(name) * errors[name] / budget_floor(size, dtype)

    return all(floors(name) <= SETTLED for name in errors)


def affordable_roundings(pairs: int) -> int:
    """Return how often a computation that costs so many scores may be rounded."""
    return max(FEWEST, min(MOST, PAIRS // max(1, pairs)))


def farthest(
    evaluate: Callable[[int], Results], truth: Results, *, dtype: torch.dtype, most: int
) -> dict[str, Tensor | None]:
    """Return each tensor of the plain computation as the rounding gave it that is farthest from the truth.

    Args:
        evaluate: the plain computation, rounded the given way (0, 1, 2, …), by name of tensor.
        truth: float64, by name; None where there is no such tensor.
        dtype: of the case.
        most: evaluations.
    """
    kept = dict(evaluate(0))
    known = {name: exact for name, exact in truth.items() if exact is not None and kept[name] is not None}

    def error(results: Results, name: str) -> float:
        result = results[name]
        return 0.0 if result is None else _largest_error(result, known[name])

    errors = {name: error(kept, name) for name in known}
    for rounding in range(1, most):
        if rounding >= FEWEST and _is_settled(errors, known, dtype):
            break
        results = evaluate(rounding)
        for name in known:
            found = error(results, name)
            if found > errors[name]:
                kept[name], errors[name] = results[name], found
    return kept
