"""Linear attention in chunks with a carried state, and its gradients: time and memory O(n). In: q, k, v. Out: out and the final state.

With ``a = φ(q)``, ``b = φ(k)`` and ``c = [v, 1]`` (the last column counts the normaliser), numerator and denominator are one product

    ``y_i = a_i (S + Σ_{j ≤ i} b_jᵀ c_j)``    with the state ``S = Σ b_jᵀ c_j`` of the keys before,

and so is every gradient: with ``g = [do / y_n, -(do · out) / y_n]``, ``da`` is the product of ``(g, c, b)``, and, summed from the end of
the sequence, ``dc`` is that of ``(b, a, g)`` and ``db`` that of ``(c, g, a)``. Within a chunk the product is a masked matmul, between
chunks it goes through the state; a few chunks of all heads make one operation. States and sums are float32 (float64 for float64).

Tensors here are ``[b, G, g, S, D]`` (g query heads a key/value head; g = 1 for keys) and, cut into chunks, ``[chunks·b·G, g·C, D]``.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem

from ._batch_runs import BatchRun
from ._scratch import Scratch

CHUNKS_AT_ONCE = 64
"""Chunks, over all heads, that one operation covers."""
TOKENS_AT_ONCE = 512
"""Tokens that one operation adds to a state or reads from it where no two of them meet in a chunk."""


class Piece(NamedTuple):
    """``count`` chunks of ``size`` tokens, from token ``first`` on."""

    first: int
    size: int
    count: int


class Parts(NamedTuple):
    """How queries and keys of a batch run meet.

    The first ``empty`` queries see nothing. The first ``head`` keys are seen by all others. Then ``aligned`` queries and keys stand side by
    side. The last ``tail`` queries see every key.
    """

    empty: int
    head: int
    aligned: int
    tail: int


def parts_of(problem: Problem, run: BatchRun) -> Parts:
    """Return the parts of these batch rows, under a causal or a full mask."""
    if not isinstance(problem.mask, Causal):
        return Parts(0, run.num_keys, 0, problem.seqlen_q)
    empty = min(max(0, -run.query_start), problem.seqlen_q)
    head = min(max(0, run.query_start), run.num_keys)
    aligned = min(problem.seqlen_q - empty, run.num_keys - head)
    return Parts(empty, head, aligned, problem.seqlen_q - empty - aligned)


def pieces(first: int, length: int, chunk: int, at_once: int = 1) -> list[Piece]:
    """Cut ``length`` tokens into chunks, ``at_once`` of them a piece; a shorter last chunk is a piece of its own."""
    whole = length // chunk
    found = [
        Piece(first + c * chunk, chunk, min(at_once, whole - c)) for c in range(0, whole, max(1, at_once))
    ]
    rest = length - whole * chunk
    return [*found, Piece(first + whole * chunk, rest, 1)] if rest else found


def _cut(x: Tensor, offset: int, piece: Piece) -> Tensor:
    """View the tokens of a piece, ``offset`` further on, as ``[chunks, b, G, g, C, D]``."""
    first = offset + piece.first
    tokens = x[..., first : first + piece.size * piece.count, :]
    return tokens.unflatten(-2, (piece.count, piece.size)).movedim(-3, 0)


def _joined(x: Tensor) -> Tensor:
    """``[chunks, b, G, g, C, D]`` → ``[chunks·b·G, g·C, D]``, a view of a buffer."""
    return x.flatten(3, 4).flatten(0, 2)


class LinearChunks:
    """The inputs of one batch run, read piece by piece into buffers that stay in cache, and the sweeps over them.

    q ``[b, G, g, Sq, D]``, k ``[b, G, 1, Sk, D]``, v ``[b, G, 1, Sk, Dv]``; outputs have these layouts too.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, parts: Parts, chunk_size: int) -> None:
        """Cut the parts into pieces."""
        self.q, self.k, self.v, self.parts = q, k, v, parts
        self.scratch = Scratch(q, torch.promote_types(q.dtype, torch.float32))
        self.group_size = q.shape[2]
        self.heads = k.shape[0] * k.shape[1]
        at_once = max(1, CHUNKS_AT_ONCE // max(1, self.heads))
        self.head = pieces(0, parts.head, TOKENS_AT_ONCE)
        self.aligned = pieces(0, parts.aligned, chunk_size, at_once)
        self.tail = pieces(parts.aligned, parts.tail, TOKENS_AT_ONCE)

    def zero_state(self) -> Tensor:
        """Return the state before any key, ``[b·G, D, Dv + 1]``."""
        shape = (self.heads, self.k.shape[-1], self.v.shape[-1] + 1)
        return torch.zeros(shape, dtype=self.scratch.dtype, device=self.q.device)

    def _slope(self, name: str, x: Tensor) -> Tensor:
        """``φ'(x) = exp(min(x, 0))``."""
        return self.scratch(name, *x.shape).copy_(x).clamp_(max=0).exp_()

    def _feature(self, name: str, x: Tensor) -> Tensor:
        """``φ(x) = elu(x) + 1 = exp(min(x, 0)) + max(x, 0)``: the sum is faster than elu, and exact where φ is small."""
        positive = self.scratch("positive", *x.shape).copy_(x).clamp_(min=0)
        return _joined(self._slope(name, x).add_(positive))

    def _queries(self, piece: Piece) -> Tensor:
        return self._feature("queries", _cut(self.q, self.parts.empty, piece))

    def _keys(self, offset: int, piece: Piece) -> Tensor:
        return self._feature("keys", _cut(self.k, offset, piece))

    def _values(self, offset: int, piece: Piece) -> Tensor:
        """``[v, 1]``."""
        v = _cut(self.v, offset, piece)
        values = self.scratch("values", *v.shape[:-1], v.shape[-1] + 1)
        values[..., :-1] = v
        values[..., -1] = 1
        return _joined(values)

    def _product(self, a: Tensor, b: Tensor, c: Tensor, states: Tensor, *, reverse: bool = False) -> Tensor:
        """``a_i (states + Σ b_jᵀ c_j)`` over the j of the same chunk up to i, or from i on."""
        scores = torch.bmm(a, b.mT, out=self.scratch("scores", a.shape[0], a.shape[1], b.shape[1]))
        group = self.group_size
        if reverse:
            scores.unflatten(2, (group, -1)).transpose(1, 2).triu_()
        else:
            scores.unflatten(1, (group, -1)).tril_()
        y = torch.bmm(scores, c, out=self.scratch("product", a.shape[0], a.shape[1], c.shape[2]))
        return y.baddbmm_(a, states)

    def _carry(self, b: Tensor, c: Tensor, state: Tensor, count: int, *, reverse: bool = False) -> Tensor:
        """Add the piece's ``Σ bᵀ c`` to ``state``; return the state that each of its chunks starts from, ``[chunks·b·G, …]``."""
        states = self.scratch("states", count + 1, *state.shape)
        step, own = (-1, states[:-1]) if reverse else (1, states[1:])
        torch.bmm(b.mT, c, out=own.flatten(0, 1))
        order = range(count, -1, -1) if reverse else range(count + 1)
        states[order[0]] = state
        for index in order[1:]:
            states[index].add_(states[index - step])
        state.copy_(states[order[-1]])
        return (states[1:] if reverse else states[:-1]).flatten(0, 1)

    def _absorb_head(self, state: Tensor) -> None:
        for piece in self.head:
            state.baddbmm_(self._keys(0, piece).mT, self._values(0, piece))

    def attend(self, out: Tensor, total: Tensor, state: Tensor) -> None:
        """Write ``out`` and the denominators ``total`` ``[b, G, g, Sq, 1]``; ``state`` starts before the first key and ends after the last."""
        parts = self.parts

        def store(y: Tensor, piece: Piece) -> None:
            rows = y.view(piece.count, *self.k.shape[:2], self.group_size, piece.size, -1)
            denominator = rows[..., -1:]
            denominator.masked_fill_(denominator == 0, 1)
            torch.div(rows[..., :-1], denominator, out=_cut(out, parts.empty, piece))
            _cut(total, parts.empty, piece).copy_(denominator)

        out[..., : parts.empty, :] = 0
        total[..., : parts.empty, :] = 1
        self._absorb_head(state)
        for piece in self.aligned:
            a, b, c = self._queries(piece), self._keys(parts.head, piece), self._values(parts.head, piece)
            store(self._product(a, b, c, self._carry(b, c, state, piece.count)), piece)
        for piece in self.tail:
            store(torch.bmm(self._queries(piece), state), piece)

    def gradients(self, out: Tensor, total: Tensor, grad_out: Tensor, dq: Tensor, dk: Tensor, dv: Tensor) -> None:
        """Write the gradients of what is seen into ``dq``, ``dk`` and ``dv``; the rest is left as it is."""
        parts = self.parts

        def upstream(piece: Piece) -> Tensor:
            rows = [_cut(x, parts.empty, piece) for x in (out, total, grad_out)]
            g = self.scratch("upstream", *rows[0].shape[:-1], rows[0].shape[-1] + 1)
            torch.div(rows[2], rows[1], out=g[..., :-1])
            torch.sum(torch.mul(g[..., :-1], rows[0]), -1, out=g[..., -1]).neg_()
            return _joined(g)

        def store(target: Tensor, y: Tensor, offset: int, piece: Piece) -> None:
            place = _cut(target, offset, piece)
            place.copy_(y.view(place.shape[:-1] + y.shape[-1:])[..., : place.shape[-1]])

        def store_dq(y: Tensor, piece: Piece) -> None:
            slope = self._slope("positive", _cut(self.q, parts.empty, piece))
            store(dq, y.mul_(_joined(slope)), parts.empty, piece)

        state = self.zero_state()
        self._absorb_head(state)
        for piece in self.aligned:
            g, b, c = upstream(piece), self._keys(parts.head, piece), self._values(parts.head, piece)
            store_dq(self._product(g, c, b, self._carry(b, c, state, piece.count).mT), piece)
        for piece in self.tail:
            store_dq(torch.bmm(upstream(piece), state.mT), piece)
        state.zero_()
        for piece in self.tail:
            state.baddbmm_(self._queries(piece).mT, upstream(piece))
        for piece in reversed(self.aligned):
            a, g = self._queries(piece), upstream(piece)
            b, c = self._keys(parts.head, piece), self._values(parts.head, piece)
            later = self._carry(a, g, state, piece.count, reverse=True)
            store(dv, self._product(b, a, g, later, reverse=True), parts.head, piece)
            db = self._product(c, g, a, later.mT, reverse=True)
            store(dk, db.mul_(b.clamp_(max=1)), parts.head, piece)
        for piece in self.head:
            b, c = self._keys(0, piece), self._values(0, piece)
            store(dv, torch.bmm(b, state), 0, piece)
            store(dk, torch.bmm(c, state.mT).mul_(b.clamp_(max=1)), 0, piece)
