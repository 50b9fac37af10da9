"""Linear attention in chunks with a carried state, and its gradients: time and memory O(n).

In: q, k, v. Out: out, and the state after the last key. With ``a = φ(q)``, ``b = φ(k)`` and ``c = [v, 1]``,
whose column of ones sums up the normaliser, numerator and denominator are one product

    ``y_i = a_i (S + Σ_{j ≤ i} b_jᵀ c_j)``    with the state ``S = Σ b_jᵀ c_j`` of all keys before,

and so is every gradient. With ``g = [do, -do · out] / denominator``, ``da`` is the product of ``(g, c, b)``
and, summed from the end of the sequence, ``dc`` is that of ``(b, a, g)`` and ``db`` that of ``(c, g, a)``.
Inside a chunk it is a masked matmul, between chunks it goes through the state. States and sums are float32
(float64 for float64). Tensors are ``[b, G, g, S, D]`` (g query heads a key/value head; 1 for keys) and,
once cut into chunks of C, ``[chunks·b·G, g·C, D]``. c and g have as many columns as the state, E: beyond
``Dv + 1`` they are 0.
"""

from math import e, log2

import torch
from torch import Tensor

from .buffers import Buffers, Rows
from .parts import Parts, Piece, num_columns


def _cut(x: Tensor, offset: int, piece: Piece) -> Tensor:
    """View a piece of x ``[b, G, g, S, D]``, ``offset`` tokens further on, as ``[chunks, b, G, g, C, D]``."""
    *heads, token, column = x.stride()
    shape = (piece.num_chunks, *x.shape[:3], piece.size, x.shape[4])
    first = x.storage_offset() + (offset + piece.first) * token
    return x.as_strided(shape, (piece.size * token, *heads, token, column), first)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``total += a b``, by the operator that FLOP counters know."""
    return torch.baddbmm(total, a, b, out=total)


def _slope(x: Tensor, slope: Tensor) -> Tensor:
    """Write ``φ'(x) = exp(min(x, 0))``, which is also ``min(φ(x), 1)``; exp2 takes half the time of exp."""
    if slope.dtype == x.dtype:
        torch.mul(x, log2(e), out=slope)
    else:
        slope.copy_(x).mul_(log2(e))
    return slope.clamp_(max=0).exp2_()


class LinearChunks:
    """The inputs of one batch run, read piece by piece into buffers, and the sweeps over them.

    q ``[b, G, g, Sq, D]``, k ``[b, G, 1, Sk, D]``, v ``[b, G, 1, Sk, Dv]``; results have these layouts too.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, parts: Parts, state: Tensor | None = None) -> None:
        """Read nothing yet; ``state`` ``[b·G, D, Dv + 1]`` is that of earlier keys, if there are any."""
        self.q, self.k, self.v, self.parts = q, k, v, parts
        self.group_size, self.width, self.value_width = q.shape[2], k.shape[-1], v.shape[-1]
        self.buffers = Buffers(q, *k.shape[:2])
        if state is None:
            shape = (k.shape[0] * k.shape[1], self.width, num_columns(self.value_width))
            state = torch.zeros(shape, dtype=self.buffers.dtype, device=q.device)
        self.state = state

    def attend(self, out: Tensor, total: Tensor) -> None:
        """Write ``out`` and denominators ``total`` ``[b, G, g, Sq, 1]``; add all keys to the state."""
        parts = self.parts
        out[..., : parts.empty, :].zero_()
        total[..., : parts.empty, :].fill_(1)
        self._add_head()
        for piece in parts.aligned:
            a, y = self._queries(piece), self._room("product", piece, self.group_size)
            b, c = self._keys(parts.num_head, piece), self._values(parts.num_head, piece)
            self._product(y, a, b, c)
            for y_, a_, b_, c_ in zip(y.chunks, a.chunks, b.chunks, c.chunks, strict=True):
                _add_product(y_, a_, self.state)
                _add_product(self.state, b_.mT, c_)
            self._divide(y, out, total, piece)
        for piece in parts.tail:
            a, y = self._queries(piece), self._room("product", piece, self.group_size)
            torch.bmm(a.joined, self.state, out=y.joined)
            self._divide(y, out, total, piece)

    def gradients(
        self, out: Tensor, total: Tensor, grad_out: Tensor, dq: Tensor, dk: Tensor, dv: Tensor
    ) -> None:
        """Write the gradients of what is seen into ``dq``, ``dk`` and ``dv`` and leave the rest as it is."""
        given = (out, total, grad_out)
        self._forward_sweep(given, dq)
        self.state.zero_()
        self._backward_sweep(given, dk, dv)

    def _forward_sweep(self, given: tuple[Tensor, ...], dq: Tensor) -> None:
        """Write ``dq = da · φ'(q)``; the state holds ``Σ bᵀ c`` of the keys so far."""
        parts = self.parts
        self._add_head()
        for piece in parts.aligned:
            g, da = self._upstream(piece, *given), self._feature_room("product", piece, self.group_size)
            b, c = self._keys(parts.num_head, piece), self._values(parts.num_head, piece)
            self._product(da, g, c, b)
            for da_, g_, b_, c_ in zip(da.chunks, g.chunks, b.chunks, c.chunks, strict=True):
                _add_product(da_, g_, self.state.mT)
                _add_product(self.state, b_.mT, c_)
            self._write_dq(dq, da, piece)
        for piece in parts.tail:
            g, da = self._upstream(piece, *given), self._feature_room("product", piece, self.group_size)
            torch.bmm(g.joined, self.state.mT, out=da.joined)
            self._write_dq(dq, da, piece)

    def _backward_sweep(self, given: tuple[Tensor, ...], dk: Tensor, dv: Tensor) -> None:
        """Write ``dk = db · φ'(k)`` and ``dv``; the state holds ``Σ aᵀ g``, from the last query on."""
        parts = self.parts
        for piece in parts.tail:
            a, g = self._queries(piece), self._upstream(piece, *given)
            _add_product(self.state, a.joined.mT, g.joined)
        for piece in reversed(parts.aligned):
            self._keys_gradients(piece, given, dk, dv)
        for piece in parts.head:
            b, c = self._keys(0, piece), self._values(0, piece)
            dc, db = self._room("product", piece, 1), self._feature_room("db", piece, 1)
            torch.bmm(b.joined, self.state, out=dc.joined)
            _cut(dv, 0, piece).copy_(dc.left)
            torch.bmm(c.joined, self.state.mT, out=db.joined)
            self._write_dk(dk, db, b, 0, piece)

    def _keys_gradients(self, piece: Piece, given: tuple[Tensor, ...], dk: Tensor, dv: Tensor) -> None:
        """Write ``dk`` and ``dv`` of one aligned piece and add its queries to the state.

        On return nothing holds a buffer, which may have to grow: the last piece, which is the first here, can
        be the smallest.
        """
        first = self.parts.num_head
        a, g = self._queries(piece), self._upstream(piece, *given)
        b, c = self._keys(first, piece), self._values(first, piece)
        dc, db = self._room("product", piece, 1), self._feature_room("db", piece, 1)
        self._product(dc, b, a, g, reverse=True)
        self._product(db, c, g, a, reverse=True)
        chunks = zip(*(x.chunks[::-1] for x in (dc, db, a, b, c, g)), strict=True)
        for dc_, db_, a_, b_, c_, g_ in chunks:
            _add_product(dc_, b_, self.state)
            _add_product(db_, c_, self.state.mT)
            _add_product(self.state, a_.mT, g_)
        _cut(dv, first, piece).copy_(dc.left)
        self._write_dk(dk, db, b, first, piece)

    def _room(self, name: str, piece: Piece, group: int) -> Rows:
        """Return rows of the state's width, v's to the left."""
        return self.buffers.rows(name, piece, group, self.value_width, self.state.shape[-1])

    def _feature_room(self, name: str, piece: Piece, group: int) -> Rows:
        """Return rows of k's width."""
        return self.buffers.rows(name, piece, group, self.width, self.width)

    def _queries(self, piece: Piece) -> Rows:
        return self._feature("queries", _cut(self.q, self.parts.empty, piece), piece, self.group_size)

    def _keys(self, offset: int, piece: Piece) -> Rows:
        return self._feature("keys", _cut(self.k, offset, piece), piece, 1)

    def _feature(self, name: str, x: Tensor, piece: Piece, group: int) -> Rows:
        """``φ(x) = elu(x) + 1``, as ``exp(min(x, 0)) + max(x, 0)``: keeps what is small."""
        positive = self._feature_room("product", piece, group).left  # which comes later
        if positive.dtype == x.dtype:
            torch.clamp(x, min=0, out=positive)
        else:  # the operator itself does not widen 16 bits
            positive.copy_(x).clamp_(min=0)
        feature = self._feature_room(name, piece, group)
        _slope(x, feature.left).add_(positive)
        return feature

    def _values(self, offset: int, piece: Piece) -> Rows:
        """``[v, 1, 0, …]``."""
        values = self._room("values", piece, 1)
        values.left.copy_(_cut(self.v, offset, piece))
        values.column.fill_(1)
        values.padding.zero_()
        return values

    def _upstream(self, piece: Piece, out: Tensor, total: Tensor, grad_out: Tensor) -> Rows:
        """``[do, -do · out, 0, …] / denominator``."""
        rows, denominator, given = (_cut(x, self.parts.empty, piece) for x in (out, total, grad_out))
        upstream = self._room("upstream", piece, self.group_size)
        torch.div(given, denominator, out=upstream.left)
        weighted = self.buffers.rows("weighted", piece, self.group_size, self.value_width, self.value_width)
        torch.mul(upstream.left, rows, out=weighted.left)
        torch.sum(weighted.left, -1, keepdim=True, out=upstream.column).neg_()
        upstream.padding.zero_()
        return upstream

    def _add_head(self) -> None:
        for piece in self.parts.head:
            _add_product(self.state, self._keys(0, piece).joined.mT, self._values(0, piece).joined)

    def _product(self, y: Rows, a: Rows, b: Rows, c: Rows, *, reverse: bool = False) -> None:
        """``y_i = a_i Σ b_jᵀ c_j`` over the j of its chunk up to i, or from i on."""
        scores = self.buffers.scores(a.joined, b.joined, self.group_size, reverse=reverse)
        torch.bmm(a.joined, b.joined.mT, out=scores.joined)
        if reverse:
            scores.pairs.triu_()
        else:
            scores.pairs.tril_()
        torch.bmm(scores.joined, c.joined, out=y.joined)

    def _divide(self, y: Rows, out: Tensor, total: Tensor, piece: Piece) -> None:
        """Write numerator by denominator; where no key counts, 0 / 1."""
        y.column.masked_fill_(y.column == 0, 1)
        torch.div(y.left, y.column, out=_cut(out, self.parts.empty, piece))
        _cut(total, self.parts.empty, piece).copy_(y.column)

    def _write_dq(self, dq: Tensor, da: Rows, piece: Piece) -> None:
        slope = self._feature_room("queries", piece, self.group_size).left
        _slope(_cut(self.q, self.parts.empty, piece), slope)
        _cut(dq, self.parts.empty, piece).copy_(da.left.mul_(slope))

    def _write_dk(self, dk: Tensor, db: Rows, b: Rows, offset: int, piece: Piece) -> None:
        db.joined.mul_(b.joined.clamp_(max=1))
        _cut(dk, offset, piece).copy_(db.left)
