"""What a comparison adds up: largest and root mean square errors, values that are not finite. In: tensors, a
piece at a time. Out: numbers.

A million tokens are 2²⁶ numbers a tensor: widened to float64 whole, with masks and differences beside them,
they would take gigabytes. Pieces stay in cache.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

PIECE = 1 << 18
"""Numbers that are compared at once."""


class Tally:
    """Sums and maxima over pieces of a result, its float64 truth and its baseline.

    Where result or truth are not finite they are counted and left out, as is the baseline where it is not.
    """

    def __init__(self, *, infinite_may_agree: bool) -> None:
        """Start with nothing; ``infinite_may_agree``: -inf where the truth is -inf is right."""
        self._infinite_may_agree = infinite_may_agree
        self.nonfinite = self.nonfinite_reference = 0
        self.largest = self.max_abs_error = self.base_error = 0.0
        self._size = self._distance = self._base_size = self._base_distance = 0.0

    @property
    def rms_relative_error(self) -> float:
        """``‖x - truth‖ / ‖truth‖``."""
        return _ratio(self._distance, self._size)

    @property
    def base_rms_relative_error(self) -> float:
        """The same of the baseline, over the elements where it is finite."""
        return _ratio(self._base_distance, self._base_size)

    def add(self, actual: Tensor, reference: Tensor, plain: Tensor) -> None:
        """Add a result, its truth and its baseline, in any dtype and equal shapes."""
        flat = (x.detach().cpu().reshape(-1).split(PIECE) for x in (actual, reference, plain))
        for x, truth, base in zip(*flat, strict=True):
            self._add_piece(x.double(), truth.double(), base.double())

    def add_where(self, held: Tensor, actual: Tensor, reference: Tensor, plain: Tensor) -> None:
        """Add a result ``[B, H, S, D]`` of which truth and baseline hold the positions ``held`` (booleans
        ``[S]``), and are 0 at all others.
        """
        held, actual = held.cpu(), actual.detach()
        first = 0
        for part, x in _along(held, actual):
            count = int(part.sum())
            if count == 0:
                self.add_zeros(x)
                continue
            kept = part.to(x.device)
            block = slice(first, first + count)
            self.add(x[:, :, kept], reference[:, :, block], plain[:, :, block])
            if count < part.numel():
                self.add_zeros(x[:, :, ~kept])
            first += count

    def add_zeros(self, actual: Tensor) -> None:
        """Add a part of a result that is 0 in truth and baseline."""
        if actual.numel() == 0:
            return
        largest = float(actual.detach().abs().max())
        if not math.isfinite(largest):
            zeros = torch.zeros_like(actual)
            self.add(actual, zeros, zeros)
        elif largest > 0:
            self.max_abs_error = max(self.max_abs_error, largest)
            self._distance = math.hypot(self._distance, _norm(actual.detach().double()))

    def _add_piece(self, x: Tensor, truth: Tensor, base: Tensor) -> None:
        if x.numel() == 0:
            return
        difference, base_difference = x - truth, base - truth
        error, base_error = _largest(difference), _largest(base_difference)
        if math.isfinite(error + base_error):  # then so is every one of the three
            self._add_finite(truth, difference, error)
            self._add_base(truth, base_difference, base_error)
            return
        finite, finite_truth = torch.isfinite(x), torch.isfinite(truth)
        agree = torch.zeros_like(finite)
        if self._infinite_may_agree:
            agree = (x == -math.inf) & (truth == -math.inf)
        self.nonfinite += int((~finite & ~agree).sum())
        self.nonfinite_reference += int((~finite_truth & ~agree).sum())
        usable = finite & finite_truth
        base_usable = usable & torch.isfinite(base)
        self._add_finite(truth[usable], difference[usable], _largest(difference[usable]))
        self._add_base(
            truth[base_usable], base_difference[base_usable], _largest(base_difference[base_usable])
        )

    def _add_finite(self, truth: Tensor, difference: Tensor, error: float) -> None:
        self.largest = max(self.largest, _largest(truth))
        self.max_abs_error = max(self.max_abs_error, error)
        self._size = math.hypot(self._size, _norm(truth))
        self._distance = math.hypot(self._distance, _norm(difference))

    def _add_base(self, truth: Tensor, difference: Tensor, error: float) -> None:
        self.base_error = max(self.base_error, error)
        self._base_size = math.hypot(self._base_size, _norm(truth))
        self._base_distance = math.hypot(self._base_distance, _norm(difference))


def _along(held: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut positions, and a result along them, into pieces."""
    positions = max(1, PIECE // max(1, x.shape[0] * x.shape[1] * x.shape[3]))
    return zip(held.split(positions), x.split(positions, dim=2), strict=True)


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def _ratio(distance: float, size: float) -> float:
    return distance / size if size else (0.0 if distance == 0 else math.inf)
