"""Semantics applied to whole tensors, row block by row block: the float64 truth and the baseline.

In: q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` in any dtype. Out: float64 truth, or a
baseline in the inputs' own dtype, on all query rows or on sampled ones, with gradients if asked. The baseline
can be rounded anew: in another order of its sums, and with what it stores in another unit.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .hidden import hidden_keys, keys_near, visible_matrix, zero_hidden
from .implementation import AttentionOutput
from .joining import Attended, attend_in_parts, attend_whole
from .problem import Problem
from .rounding import Rounding
from .semantics import BlockFunction, Semantics

BLOCK_BYTES = 1 << 26
"""Size of one block of float64 scores."""
PART_BYTES = 1 << 28
"""Keys of more bytes in float64 are attended to in parts: joined, a baseline rounds a little otherwise, so
ordinary lengths are not."""


class Truth(NamedTuple):
    """Results of one evaluation.

    ``out``, ``lse`` and ``dq`` on the rows asked for, ``dk`` and ``dv`` on the ``keys`` (booleans ``[Sk]``;
    None for all) that any of these rows may see: the gradients of all others are 0.
    """

    out: Tensor
    lse: Tensor | None
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    keys: Tensor | None = None


class _Block(NamedTuple):
    """Rows that are evaluated at once: ``first`` to ``last`` of those asked for, and the keys near them."""

    first: int
    last: int
    keys: slice

    def parts(self, most_keys: int) -> list[slice]:
        """Cut the keys into parts of so many at most."""
        first, last = self.keys.start, self.keys.stop
        return [slice(key, min(key + most_keys, last)) for key in range(first, last, most_keys)] or [
            self.keys
        ]


def _most_keys(p: Problem, semantics: Semantics) -> int:
    """Return how many keys of all heads fit into a block, where rows can be joined from parts."""
    per_key = 8 * p.batch * p.num_heads * max(p.head_dim, p.head_dim_v)
    return max(1, PART_BYTES // max(1, per_key)) if semantics.joins else max(1, p.seqlen_k)


def _blocks(p: Problem, rows: Tensor, semantics: Semantics) -> Iterator[_Block]:
    """Cut rows into blocks whose scores fit, and where the keys of two neighbours are apart."""
    most = BLOCK_BYTES // (8 * max(1, p.batch * p.num_heads))
    most_keys = _most_keys(p, semantics)
    first, keys = 0, slice(0, 0)
    for place, row in enumerate(rows.tolist()):
        near = keys_near(p, row, row) if semantics.local_keys else slice(0, p.seqlen_k)
        if place == first:
            keys = near
            continue
        both = slice(min(keys.start, near.start), max(keys.stop, near.stop))
        apart = near.start > keys.stop or near.stop < keys.start
        if apart or (place + 1 - first) * min(most_keys, both.stop - both.start) > most:
            yield _Block(first, place, keys)
            first, keys = place, near
        else:
            keys = both
    if rows.numel():
        yield _Block(first, rows.numel(), keys)


def _keys_of(blocks: list[_Block], seqlen_k: int) -> Tensor | None:
    """Mark the keys of all blocks; None if they are all keys."""
    seen = torch.zeros(seqlen_k, dtype=torch.bool)
    for block in blocks:
        seen[block.keys] = True
    return None if bool(seen.all()) else seen


class _Order:
    """An order in which the elements of heads are taken, and back."""

    def __init__(self, rounding: Rounding, n: int) -> None:
        self._rounding, self._order = rounding, rounding.order(n)
        self._back = torch.argsort(self._order)

    def taken(self, x: Tensor) -> Tensor:
        return self._rounding.taken(x, self._order)

    def restored(self, x: Tensor) -> Tensor:
        return self._rounding.taken(x, self._back)


class _Inputs(NamedTuple):
    """What a block is made from: widened, in the order of sums, and with hidden slots zero, a block at a
    time.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    hidden: Tensor | None
    dtype: torch.dtype
    of_heads: _Order
    of_values: _Order

    def queries(self, rows: Tensor) -> Tensor:
        """Return the queries at these places."""
        return self.of_heads.taken(self.q.detach()[:, :, rows].to(self.dtype))

    def keys(self, keys: slice) -> tuple[Tensor, Tensor]:
        """Return keys and values."""
        k, v = (x.detach()[:, :, keys].to(self.dtype) for x in (self.k, self.v))
        k, v = self.of_heads.taken(k), self.of_values.taken(v)
        if self.hidden is None:
            return k, v
        hidden = self.hidden[:, :, keys, None]
        return k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)


def _evaluate(
    function: BlockFunction,
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    grad_out: Tensor | None,
    rows: Tensor | None,
    params: Mapping[str, Tensor] | None,
    dtype: torch.dtype,
    rounding: Rounding,
) -> Truth:
    p, gradients = problem, grad_out is not None
    index = torch.arange(p.seqlen_q) if rows is None else rows.cpu()
    blocks = list(_blocks(p, index, semantics))
    keys = _keys_of(blocks, p.seqlen_k) if gradients and rows is not None else None
    places = None if keys is None else keys.cumsum(0)
    # Nothing sums over the elements of values but a backward pass.
    in_values = rounding if gradients else Rounding()
    of_heads, of_values = _Order(rounding, p.head_dim), _Order(in_values, p.head_dim_v)
    given = _Inputs(q, k, v, hidden_keys(p, q.device), dtype, of_heads, of_values)
    # Sums over blocks are float32's or better, as all sums are.
    wide = torch.promote_types(dtype, torch.float32)
    num_keys = p.seqlen_k if keys is None else int(keys.sum())
    dk, dv = (
        x.new_zeros(*x.shape[:2], num_keys, x.shape[3], dtype=wide) if gradients else None for x in (k, v)
    )
    outs, lses, dqs = [], [], []
    for block in blocks:
        queries = index[block.first : block.last]
        here = queries.to(q.device)
        q_block = given.queries(here).requires_grad_(gradients)

        def attend(part: slice, queries: Tensor = queries, q_block: Tensor = q_block) -> Attended:
            k_block, v_block = (x.requires_grad_(gradients) for x in given.keys(part))
            visible = visible_matrix(p, q.device, queries, part)
            wide_k, wide_v = (x.repeat_interleave(p.group_size, dim=1) for x in (k_block, v_block))
            out, lse = function(q_block, wide_k, wide_v, problem=p, visible=visible, params=params)
            return out, lse, (q_block, k_block, v_block)

        upstream = None if grad_out is None else of_values.taken(grad_out[:, :, here])
        parts = block.parts(_most_keys(p, semantics))
        if len(parts) == 1:
            found = attend_whole(attend, parts[0], upstream)
        else:
            found = attend_in_parts(attend, parts, upstream)
        for part, part_dk, part_dv in found.of_keys:
            place = part if places is None else _among(part, places)
            for total, gradient in ((dk, of_heads.restored(part_dk)), (dv, of_values.restored(part_dv))):
                if total is not None:
                    total[:, :, place] += gradient
        outs.append(of_values.restored(found.out))
        if semantics.has_lse and found.lse is not None:
            lses.append(found.lse.expand(p.batch, p.num_heads, queries.numel()))
        if found.dq is not None:
            dqs.append(of_heads.restored(found.dq))
    shape = (p.batch, p.num_heads, 0)
    out = torch.cat(outs, dim=2) if outs else q.new_zeros(*shape, p.head_dim_v, dtype=dtype)
    lse = torch.cat(lses, dim=2) if lses else None
    if lse is None and semantics.has_lse:
        lse = q.new_zeros(shape, dtype=dtype)
    if dk is None or dv is None:
        return Truth(out, lse)
    dq = torch.cat(dqs, dim=2) if dqs else q.new_zeros(*shape, p.head_dim, dtype=dtype)
    return Truth(out, lse, dq, dk.to(dtype), dv.to(dtype), keys)


def _among(part: slice, places: Tensor) -> slice:
    """Return where a range of keys stands among the marked ones, ``places`` counting those up to each key."""
    if part.start >= part.stop:
        return slice(0, 0)
    return slice(int(places[part.start]) - 1, int(places[part.stop - 1]))


def truth(
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    grad_out: Tensor | None = None,
    rows: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
) -> Truth:
    """Evaluate the definition in float64 on all query rows, or on the given ones (``rows``, 1-d, shared by
    all heads).

    Gradients are those of ``sum(out · grad_out)`` over the evaluated rows alone, which are those of the whole
    under an upstream gradient that is zero elsewhere. dq comes on these rows, dk and dv on the keys that any
    of them may see; all other gradients are 0.
    """
    wide_params = None if params is None else {name: value.double() for name, value in params.items()}
    return _evaluate(
        semantics.reference,
        semantics,
        q,
        k,
        v,
        problem,
        grad_out,
        rows,
        wide_params,
        torch.float64,
        Rounding(),
    )


def baseline(
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    grad_out: Tensor | None = None,
    rows: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
    rounding: int = 0,
) -> Truth:
    """Evaluate the plain computation in the inputs' own dtype: what an error budget is measured by.

    Same arguments as ``truth``, and ``rounding``: 0 is the computation as written down. Each other number is
    the same computation rounded elsewhere: the elements of heads are summed in an order of its own, and what
    is stored is stored in a unit of its own (``Semantics.in_unit``), so that sums over keys round anew too.
    """
    function, anew = semantics.baseline, Rounding()
    if rounding and semantics.in_unit is not None:
        anew = Rounding(rounding)
        function = semantics.in_unit(anew.unit)
    return _evaluate(function, semantics, q, k, v, problem, grad_out, rows, params, q.dtype, anew)


def definition(
    semantics: Semantics,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    params: Mapping[str, Tensor] | None = None,
    plain: bool = False,
) -> AttentionOutput:
    """Evaluate the reference (or, if ``plain``, the baseline) on all rows at once in the inputs' dtype,
    under autograd: n² memory.
    """
    k, v = zero_hidden(k, v, problem)
    wide_k, wide_v = (x.repeat_interleave(problem.group_size, dim=1) for x in (k, v))
    function = semantics.baseline if plain else semantics.reference
    visible = visible_matrix(problem, q.device)
    out, lse = function(q, wide_k, wide_v, problem=problem, visible=visible, params=params)
    return AttentionOutput(out, lse if semantics.has_lse else None)
