"""Linear attention in chunks with a carried state, and its gradients: time and memory O(n).

In: q, k, v. Out: out, and the state after the last key. With ``a = φ(q)``, ``b = φ(k)`` and ``c = [v, 1]``,
whose last column sums up the normaliser, numerator and denominator are one product

    ``y_i = a_i (S + Σ_{j ≤ i} b_jᵀ c_j)``    with the state ``S = Σ b_jᵀ c_j`` of all keys before,

and so is every gradient. With ``g = [do, -do · out] / denominator``, ``da`` is the product of ``(g, c, b)``
and, summed from the end of the sequence, ``dc`` is that of ``(b, a, g)`` and ``db`` that of ``(c, g, a)``.
Inside a chunk it is a masked matmul, between chunks it goes through the state. States and sums are float32
(float64 for float64). Tensors are ``[b, G, g, S, D]`` (g query heads a key/value head; 1 for keys) and,
once cut into chunks of C, ``[chunks·b·G, g·C, D]``.
"""

from itertools import pairwise

import torch
from torch import Tensor

from ._linear_parts import Parts, Piece
from ._scratch import Scratch


def _cut(x: Tensor, offset: int, piece: Piece) -> Tensor:
    """View a piece of x ``[b, G, g, S, D]``, ``offset`` tokens further on, as ``[chunks, b, G, g, C, D]``."""
    *heads, token, column = x.stride()
    shape = (piece.num_chunks, *x.shape[:3], piece.size, x.shape[4])
    first = x.storage_offset() + (offset + piece.first) * token
    return x.as_strided(shape, (piece.size * token, *heads, token, column), first)


def _joined(x: Tensor) -> Tensor:
    """``[chunks, b, G, g, C, D]`` → ``[chunks·b·G, g·C, D]``, a view of a buffer."""
    chunks, b, kv_heads, group, size, width = x.shape
    return x.view(chunks * b * kv_heads, group * size, width)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``total += a b``, by the operator that FLOP counters know."""
    return torch.baddbmm(total, a, b, out=total)


class LinearChunks:
    """The inputs of one batch run, read piece by piece into buffers, and the sweeps over them.

    q ``[b, G, g, Sq, D]``, k ``[b, G, 1, Sk, D]``, v ``[b, G, 1, Sk, Dv]``; results have these layouts too.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> None:
        """Read nothing yet."""
        self.q, self.k, self.v, self.parts = q, k, v, parts
        self.group_size = q.shape[2]
        self.scratch = Scratch(q, torch.promote_types(q.dtype, torch.float32))

    def zero_state(self) -> Tensor:
        """Return the state before any key, ``[b·G, D, Dv + 1]``."""
        shape = (self.k.shape[0] * self.k.shape[1], self.k.shape[-1], self.v.shape[-1] + 1)
        return torch.zeros(shape, dtype=self.scratch.dtype, device=self.q.device)

    def attend(self, out: Tensor, total: Tensor, state: Tensor) -> None:
        """Write ``out`` and denominators ``total`` ``[b, G, g, Sq, 1]``; add all keys to ``state``."""
        parts = self.parts
        out[..., : parts.empty, :].zero_()
        total[..., : parts.empty, :].fill_(1)
        self._add_head(state)
        for piece in parts.aligned:
            a, b, c = (
                self._queries(piece),
                self._keys(parts.num_head, piece),
                self._values(parts.num_head, piece),
            )
            y = self._product(a, b, c, self._carry(b, c, state, piece.num_chunks))
            self._divide(y, out, total, piece)
        for piece in parts.tail:
            self._divide(self._times(self._queries(piece), state), out, total, piece)

    def gradients(
        self, out: Tensor, total: Tensor, grad_out: Tensor, dq: Tensor, dk: Tensor, dv: Tensor
    ) -> None:
        """Write the gradients of what is seen into ``dq``, ``dk`` and ``dv`` and leave the rest as it is."""
        given = (out, total, grad_out)
        state = self.zero_state()
        self._forward_sweep(given, dq, state)
        self._backward_sweep(given, dk, dv, state.zero_())

    def _forward_sweep(self, given: tuple[Tensor, ...], dq: Tensor, state: Tensor) -> None:
        """Write ``dq = da · φ'(q)``; the state holds ``Σ bᵀ c`` of the keys so far."""
        parts = self.parts
        self._add_head(state)
        for piece in parts.aligned:
            g = self._upstream(piece, *given)
            b, c = self._keys(parts.num_head, piece), self._values(parts.num_head, piece)
            self._write_dq(dq, self._product(g, c, b, self._carry(b, c, state, piece.num_chunks).mT), piece)
        for piece in parts.tail:
            self._write_dq(dq, self._times(self._upstream(piece, *given), state.mT), piece)

    def _backward_sweep(self, given: tuple[Tensor, ...], dk: Tensor, dv: Tensor, state: Tensor) -> None:
        """Write ``dk = db · φ'(k)`` and ``dv``; the state holds ``Σ aᵀ g``, from the last query on."""
        parts = self.parts
        for piece in parts.tail:
            _add_product(state, self._queries(piece).mT, self._upstream(piece, *given))
        for piece in reversed(parts.aligned):
            a, g = self._queries(piece), self._upstream(piece, *given)
            b, c = self._keys(parts.num_head, piece), self._values(parts.num_head, piece)
            later = self._carry(a, g, state, piece.num_chunks, reverse=True)
            self._write(dv, self._product(b, a, g, later, reverse=True), parts.num_head, piece)
            db = self._product(c, g, a, later.mT, reverse=True)
            self._write(dk, db.mul_(b.clamp_(max=1)), parts.num_head, piece)
        for piece in parts.head:
            b, c = self._keys(0, piece), self._values(0, piece)
            self._write(dv, self._times(b, state), 0, piece)
            self._write(dk, self._times(c, state.mT).mul_(b.clamp_(max=1)), 0, piece)

    def _clamped(self, name: str, x: Tensor, **bounds: int) -> Tensor:
        """Clamp x into a buffer; the operator itself does not widen 16 bits."""
        buffer = self.scratch(name, *x.shape)
        if buffer.dtype == x.dtype:
            return torch.clamp(x, **bounds, out=buffer)
        return buffer.copy_(x).clamp_(**bounds)

    def _slope(self, name: str, x: Tensor) -> Tensor:
        """``φ'(x) = exp(min(x, 0))``, which is also ``min(φ(x), 1)``."""
        return self._clamped(name, x, max=0).exp_()

    def _feature(self, name: str, x: Tensor) -> Tensor:
        """``φ(x) = elu(x) + 1``, as ``exp(min(x, 0)) + max(x, 0)``: faster, and exact where φ is small."""
        positive = self._clamped("positive", x, min=0)
        return _joined(self._slope(name, x).add_(positive))

    def _queries(self, piece: Piece) -> Tensor:
        return self._feature("queries", _cut(self.q, self.parts.empty, piece))

    def _keys(self, offset: int, piece: Piece) -> Tensor:
        return self._feature("keys", _cut(self.k, offset, piece))

    def _values(self, offset: int, piece: Piece) -> Tensor:
        """``[v, 1]``."""
        v = _cut(self.v, offset, piece)
        values = self.scratch("values", *v.shape[:-1], v.shape[-1] + 1)
        values[..., :-1].copy_(v)
        values[..., -1].fill_(1)
        return _joined(values)

    def _upstream(self, piece: Piece, out: Tensor, total: Tensor, grad_out: Tensor) -> Tensor:
        """``[do, -do · out] / denominator``."""
        rows, denominator, given = (_cut(x, self.parts.empty, piece) for x in (out, total, grad_out))
        upstream = self.scratch("upstream", *rows.shape[:-1], rows.shape[-1] + 1)
        torch.div(given, denominator, out=upstream[..., :-1])
        weighted = torch.mul(upstream[..., :-1], rows, out=self.scratch("weighted", *rows.shape))
        torch.sum(weighted, -1, out=upstream[..., -1]).neg_()
        return _joined(upstream)

    def _add_head(self, state: Tensor) -> None:
        for piece in self.parts.head:
            _add_product(state, self._keys(0, piece).mT, self._values(0, piece))

    def _times(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b, out=self.scratch("product", a.shape[0], a.shape[1], b.shape[2]))

    def _product(self, a: Tensor, b: Tensor, c: Tensor, states: Tensor, *, reverse: bool = False) -> Tensor:
        """``a_i (states + Σ b_jᵀ c_j)`` over the j of its chunk up to i, or from i on."""
        scores = torch.bmm(a, b.mT, out=self.scratch("scores", a.shape[0], a.shape[1], b.shape[1]))
        if reverse:
            scores.view(a.shape[0], a.shape[1], self.group_size, -1).transpose(1, 2).triu_()
        else:
            scores.view(a.shape[0], self.group_size, -1, b.shape[1]).tril_()
        return _add_product(self._times(scores, c), a, states)

    def _carry(self, b: Tensor, c: Tensor, state: Tensor, count: int, *, reverse: bool = False) -> Tensor:
        """Add the piece's ``Σ bᵀ c`` to ``state``; return the states that its chunks start from."""
        heads, *matrix = state.shape
        states = self.scratch("states", (count + 1) * heads, *matrix)
        starts, ends = states[: count * heads], states[heads:]
        if reverse:
            starts, ends = ends, starts
        torch.bmm(b.mT, c, out=ends)
        chunks = states.split(heads)
        order = chunks[::-1] if reverse else chunks
        order[0].copy_(state)
        for before, after in pairwise(order):
            after.add_(before)
        state.copy_(order[-1])
        return starts

    def _unjoined(self, x: Tensor, piece: Piece) -> Tensor:
        """``[chunks·b·G, g·C, D]`` → ``[chunks, b, G, g, C, D]``."""
        return x.view(piece.num_chunks, *self.k.shape[:2], x.shape[1] // piece.size, piece.size, x.shape[2])

    def _divide(self, y: Tensor, out: Tensor, total: Tensor, piece: Piece) -> None:
        """Write numerator by denominator; where no key counts, 0 / 1."""
        rows = self._unjoined(y, piece)
        denominator = rows[..., -1:]
        denominator.masked_fill_(denominator == 0, 1)
        torch.div(rows[..., :-1], denominator, out=_cut(out, self.parts.empty, piece))
        _cut(total, self.parts.empty, piece).copy_(denominator)

    def _write(self, target: Tensor, y: Tensor, offset: int, piece: Piece) -> None:
        """Write as many columns of y as the target has."""
        _cut(target, offset, piece).copy_(self._unjoined(y, piece)[..., : target.shape[-1]])

    def _write_dq(self, dq: Tensor, da: Tensor, piece: Piece) -> None:
        slope = self._slope("positive", _cut(self.q, self.parts.empty, piece))
        self._write(dq, da.mul_(_joined(slope)), self.parts.empty, piece)
