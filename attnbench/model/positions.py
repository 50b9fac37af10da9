"""Positions: sinusoidal and rotary tables, made in float64 and kept out of reach of a module's dtype casts.

A table built in 16 bits is wrong by whole radians at long positions, and one that is a module's buffer
becomes 16 bits with the module. So tables are neither parameters nor buffers: ``PositionTable`` makes them on
demand, in float64 for float64 activations and rounded to float32 for all others.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import embedding

from .rope import RopeScaling, rotary_frequencies


def sinusoidal_table(
    num_positions: int, dim: int, device: torch.device | str = "cpu", layout: str = "interleaved"
) -> Tensor:
    """``PE(p, 2i) = sin(p / 10000^(2i/dim))``, ``PE(p, 2i+1) = cos`` of the same, in float64.

    Returns ``[num_positions, dim]``; an odd ``dim`` ends on a sine. The layout ``halves`` holds the same
    columns, all sines before all cosines. Source: arXiv 1706.03762, section 3.5.
    """
    pairs = (dim + 1) // 2
    steps = torch.arange(pairs, dtype=torch.float64, device=device)
    angles = _angles(num_positions, 10000.0 ** (-2.0 * steps / dim))
    if layout == "halves":
        return torch.cat((angles.sin(), angles.cos()), dim=-1).narrow(1, 0, dim)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).narrow(1, 0, dim)


def rotary_table(
    num_positions: int,
    head_dim: int,
    base: float,
    device: torch.device | str = "cpu",
    scaling: RopeScaling | None = None,
    seqlen: int = 0,
) -> Tensor:
    """``cos(p * base^(-2i/D))`` in the first D/2 columns, ``sin`` of the same in the others, in float64.

    Returns ``[num_positions, head_dim]``. Source: RoFormer, arXiv 2104.09864. ``scaling`` stretches it, for a
    sequence of ``seqlen`` where it follows the length.
    """
    frequencies = rotary_frequencies(head_dim, base, scaling, seqlen)
    angles = _angles(num_positions, torch.tensor(frequencies, dtype=torch.float64, device=device))
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return table if scaling is None else table * scaling.table_factor


def _angles(num_positions: int, frequencies: Tensor) -> Tensor:
    positions = torch.arange(num_positions, dtype=torch.float64, device=frequencies.device)
    return torch.outer(positions, frequencies)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn each pair ``(x_i, x_{i+D/2})`` by its angle.

    ``x [B, H, S, D]`` with a ``table`` of ``rotary_table``'s rows, ``[S, D]`` or ``[B, S, D]``. Computed in
    the table's dtype, returned in that of ``x``. Pairs lie half a head apart, as in the published weights
    of LLaMA and Qwen.
    """
    cos, sin = (table if table.ndim == 2 else table.unsqueeze(1)).chunk(2, dim=-1)
    first, second = x.to(table.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class PositionTable:
    """Rows of a table by position, grown on demand; ``make(num_positions, device=…)`` gives it in float64."""

    def __init__(self, make: Callable[..., Tensor]) -> None:
        self._make = make
        self._table: Tensor | None = None

    def rows(self, starts: Sequence[int], length: int, like: Tensor) -> Tensor:
        """Rows ``start … start + length - 1`` of each batch row, on the device of ``like``.

        ``[length, width]`` where all ``starts`` are equal, else ``[B, length, width]``; float64 if ``like``
        is, else float32.
        """
        first, last = min(starts, default=0), max(starts, default=0)
        table = self._grown(last + length, like)
        if first == last:
            return table.narrow(0, first, length)
        begins = torch.tensor(starts, device=like.device).unsqueeze(1)
        return embedding(begins + torch.arange(length, device=like.device), table)

    def _grown(self, num_positions: int, like: Tensor) -> Tensor:
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        kept = self._table
        if kept is not None and _kind(kept) == (dtype, *_kind(like)[1:]):
            if len(kept) >= num_positions:
                return kept
            # A quarter more than is there, so that decoding token by token rarely rebuilds.
            num_positions = max(num_positions, len(kept) * 5 // 4)
        # Made outside inference mode, since a later call that differentiates could not use it otherwise.
        with torch.inference_mode(False), torch.no_grad():
            table = self._make(num_positions, device=like.device).to(dtype)
        if type(like) in (Tensor, FakeTensor):
            self._table = table
        return table


class RotaryPositions(PositionTable):
    """``rotary_table`` of one head width, base and scaling, for sequences of up to ``seqlen``.

    A scaling that follows the length follows ``seqlen``, not the sequence at hand: keys that were rotated
    earlier, queries that come later, and rows with padding behind them are turned by the same frequencies.
    """

    def __init__(
        self, head_dim: int, base: float, scaling: RopeScaling | None = None, seqlen: int = 0
    ) -> None:
        super().__init__(partial(rotary_table, head_dim=head_dim, base=base, scaling=scaling, seqlen=seqlen))


def _kind(tensor: Tensor) -> tuple[object, ...]:
    """What two tensors must share to meet: dtype, device, type, and for fake ones their mode."""
    return tensor.dtype, tensor.device, type(tensor), getattr(tensor, "fake_mode", None)
