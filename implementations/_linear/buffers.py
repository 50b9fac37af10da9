"""Buffers of linear attention in the views that operators take. In: a piece. Out: tensors to overwrite.

A view costs as much as an operator on a piece, so those of one shape of piece are made once.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from attnbench.implementations._shared.scratch import Scratch

from .parts import Piece


class Rows(NamedTuple):
    """Rows of a piece: ``joined`` ``[chunks·b·G, g·C, width]`` and its ``chunks`` ``[b·G, g·C, width]`` for
    matmuls; of the same memory, as ``[chunks, b, G, g, C, ·]``, what is used to the ``left``, one ``column``
    and the ``padding`` after it.
    """

    joined: Tensor
    chunks: tuple[Tensor, ...]
    left: Tensor
    column: Tensor
    padding: Tensor


class Scores(NamedTuple):
    """``joined`` ``[chunks·b·G, rows, columns]``, and with queries by keys in its last two dimensions."""

    joined: Tensor
    pairs: Tensor


class Buffers:
    """Buffers of a batch run of ``b`` rows and G key/value heads."""

    def __init__(self, like: Tensor, batch: int, kv_heads: int) -> None:
        """Hold nothing yet; in float32, or in float64 if ``like`` is."""
        self.dtype = torch.promote_types(like.dtype, torch.float32)
        self.batch, self.kv_heads = batch, kv_heads
        self._scratch = Scratch(like, self.dtype)
        self._views: dict[str, dict[tuple[int, ...], Any]] = {}

    def rows(self, name: str, piece: Piece, group: int, used: int, width: int) -> Rows:
        """Return rows of ``width`` columns, ``group`` a token, ``used`` of them to the left."""
        views = self._views.setdefault(name, {})
        key = (piece.size, piece.num_chunks, group, used, width)
        if key not in views:
            shape = (piece.num_chunks, self.batch, self.kv_heads, group, piece.size, width)
            whole = self._fresh(name, *shape)
            heads = self.batch * self.kv_heads
            joined = whole.view(piece.num_chunks * heads, group * piece.size, width)
            views[key] = Rows(joined, joined.split(heads), *whole.tensor_split((used, used + 1), -1))
        return cast("Rows", views[key])

    def scores(self, a: Tensor, b: Tensor, group: int, *, reverse: bool) -> Scores:
        """Return room for ``a bᵀ``; the queries, ``group`` of them a token, are b's if ``reverse``."""
        views = self._views.setdefault("scores", {})
        key = (a.shape[0], a.shape[1], b.shape[1], reverse)
        if key not in views:
            joined = self._fresh("scores", *key[:3])
            sizes = (group, -1)
            pairs = joined.unflatten(2, sizes).transpose(1, 2) if reverse else joined.unflatten(1, sizes)
            views[key] = Scores(joined, pairs)
        return cast("Scores", views[key])

    def _fresh(self, name: str, *shape: int) -> Tensor:
        if not self._scratch.holds(name, *shape):
            self._views[name].clear()  # they would keep the smaller buffer
        return self._scratch(name, *shape)
