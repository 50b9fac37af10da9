"""Decoding: a state takes tokens in chunks and gives what one pass over the whole would give.

In: a state, q, k and v of new tokens. Out: their attention to all tokens so far. The key/value cache is the
shared default; implementations may bring states of their own. Nothing here records gradients.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from .cache import KeyValueCache
from .errors import UsageError
from .implementation import AttentionOutput, Implementation, require_support
from .problem import Problem
from .steps import cache_slots, plan_step, reading, window_of

__all__ = ["KeyValueCache", "append", "extend", "keep", "new_state", "read", "state_bytes"]

TOKENS_AT_ONCE = 4096
"""Of a chunk without queries, for states that only ``extend`` can fill."""


def new_state(implementation: Implementation, problem: Problem, max_seqlen: int) -> Any:
    """Return an empty decoding state for at most ``max_seqlen`` positions.

    The implementation's own, or a key/value cache: under a causal sliding window a ring buffer, whose size
    does not depend on ``max_seqlen`` once that is longer than the window.
    """
    p = problem
    if max_seqlen < 0:
        raise UsageError(f"max_seqlen must not be negative, not {max_seqlen}")
    if implementation.new_state is not None:
        return implementation.new_state(p, max_seqlen)
    slots, window, dtype = cache_slots(p, max_seqlen), window_of(p.mask), getattr(torch, p.dtype)
    return KeyValueCache(
        torch.empty(p.batch, p.num_kv_heads, slots, p.head_dim, dtype=dtype, device=p.device),
        torch.empty(p.batch, p.num_kv_heads, slots, p.head_dim_v, dtype=dtype, device=p.device),
        lengths=(0,) * p.batch,
        ring=window is not None and window < max_seqlen,
    )


def state_bytes(implementation: Implementation, problem: Problem, max_seqlen: int) -> int:
    """Bytes of that state: of a cache ``B·G·slots·(D + Dv)`` elements."""
    p = problem
    if implementation.state_bytes is not None:
        return implementation.state_bytes(p, max_seqlen)
    return p.batch * p.num_kv_heads * cache_slots(p, max_seqlen) * (p.head_dim + p.head_dim_v) * p.dtype_bytes


@torch.no_grad()
def extend(
    implementation: Implementation,
    state: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    params: Mapping[str, Tensor] | None = None,
) -> tuple[AttentionOutput, Any]:
    """Append a chunk and attend with it: q ``[B, H, T, D]``, k ``[B, G, T, D]``, v ``[B, G, T, Dv]`` → out
    ``[B, H, T, Dv]``.

    ``problem`` gives batch, heads, widths, dtype, mask, scale and options; its ``key_lengths``, if any, count
    the valid tokens of the chunk in each row, and what comes out behind them is finite and means nothing.
    Positions follow from the state.

    Raises:
        UsageError: tensors that do not fit the problem or the state, a chunk that does not fit what is left
            of a cache, or a step that the implementation does not support. The state is left as it was.
    """
    p, added = problem, _added(problem, k, v)
    chunk = k.shape[2]
    _check(p, {"q": (q, p.num_heads, p.head_dim)}, chunk)
    if implementation.extend is not None:
        ragged = None if set(added) <= {chunk} else added
        asked = p.replace(seqlen_q=chunk, seqlen_k=chunk, key_lengths=ragged, query_start=None)
        require_support(implementation, asked)
        result: tuple[AttentionOutput, Any] = implementation.extend(
            state, q, k, v, problem=asked, params=params
        )
        return result
    ends = state.require_room(added)
    in_order = implementation.semantics.by_position
    asked, kept = plan_step(p, state.slots, state.lengths, added, chunk, in_order=in_order)
    require_support(implementation, asked)
    if asked.seqlen_k == 0:  # no row has seen a token, so no query sees one
        return _nothing_seen(q, p.head_dim_v), state
    if kept is None:
        state.write(k, v, added)
        output = implementation.attention(q, *state.first(asked.seqlen_k), problem=asked, params=params)
    else:
        output = implementation.attention(q, *state.before(k, v, kept), problem=asked, params=params)
        state.write(k, v, added)
    state.lengths = ends
    return output, state


@torch.no_grad()
def append(
    implementation: Implementation,
    state: Any,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    params: Mapping[str, Tensor] | None = None,
) -> Any:
    """Put a chunk into a state without attending, as far as the state allows; return the state.

    k ``[B, G, T, D]``, v ``[B, G, T, Dv]``; ``problem`` and errors as for ``extend``. A cache is written. An
    implementation's own state is extended by queries of zeros.
    """
    p, added = problem, _added(problem, k, v)
    if implementation.extend is None:
        ends = state.require_room(added)
        state.write(k, v, added)
        state.lengths = ends
        return state
    for first in range(0, k.shape[2], TOKENS_AT_ONCE):
        keys, values = (x[:, :, first : first + TOKENS_AT_ONCE] for x in (k, v))
        size = keys.shape[2]
        valid = tuple(min(max(0, count - first), size) for count in added)
        q = keys.new_zeros(p.batch, p.num_heads, size, p.head_dim)
        part = p.replace(seqlen_q=size, seqlen_k=size, key_lengths=valid, query_start=None)
        _, state = extend(implementation, state, q, keys, values, problem=part, params=params)
    return state


@torch.no_grad()
def read(
    implementation: Implementation,
    state: Any,
    q: Tensor,
    *,
    problem: Problem,
    params: Mapping[str, Tensor] | None = None,
) -> AttentionOutput:
    """Attend to all that a state holds and add nothing: q ``[B, H, T, D]`` → out ``[B, H, T, Dv]``.

    For implementations that have ``read``. ``problem`` gives batch, heads, widths, dtype, scale and options;
    no query is hidden anything, whatever the mask.

    Raises:
        UsageError: queries that do not fit the problem or the state, and what is not supported.
    """
    if implementation.read is None:
        raise UsageError(f"{implementation.name} has no read: it attends to its state only as it extends it")
    chunk = q.shape[2] if q.ndim == 4 else 0
    _check(problem, {"q": (q, problem.num_heads, problem.head_dim)}, chunk)
    asked = require_support(implementation, reading(problem.replace(seqlen_q=chunk)))
    return implementation.read(state, q, problem=asked, params=params)


def keep(state: Any) -> Callable[[], Any]:
    """Return what puts ``state`` back as it is now and returns it; it may be called again and again.

    A state with a method ``keep`` says itself what that takes. Otherwise tensors are copied and copied back
    in place, through lists, tuples and dataclasses; anything else is copied as a whole, and each call returns
    another copy.
    """
    if hasattr(state, "keep"):
        own: Callable[[], Any] = state.keep()
        return own
    if isinstance(state, Tensor):
        tensor, saved = state, state.clone()
        return lambda: tensor.copy_(saved)
    if type(state) in (list, tuple):
        kind, parts = type(state), [keep(part) for part in state]
        return lambda: kind(restore() for restore in parts)
    if is_dataclass(state):
        by_name = {field.name: keep(getattr(state, field.name)) for field in fields(state)}

        def restore_fields() -> Any:
            for name, restore in by_name.items():
                object.__setattr__(state, name, restore())  # frozen ones too
            return state

        return restore_fields
    copy = deepcopy(state)
    return lambda: deepcopy(copy)


def _nothing_seen(q: Tensor, head_dim_v: int) -> AttentionOutput:
    """Return what queries get that see no key: zeros, and -inf as the log of an empty sum."""
    wide = torch.promote_types(q.dtype, torch.float32)
    empty = torch.full(q.shape[:3], -torch.inf, dtype=wide, device=q.device)
    return AttentionOutput(q.new_zeros(*q.shape[:3], head_dim_v), empty)


def _added(problem: Problem, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """Return how many tokens of the chunk are valid in each row."""
    p, chunk = problem, k.shape[2] if k.ndim == 4 else 0
    _check(p, {"k": (k, p.num_kv_heads, p.head_dim), "v": (v, p.num_kv_heads, p.head_dim_v)}, chunk)
    added = (chunk,) * p.batch if p.key_lengths is None else p.key_lengths
    if max(added, default=0) > chunk:
        raise UsageError(f"key_lengths: at most {chunk}, the tokens of the chunk, not {max(added)}")
    return added


def _check(problem: Problem, given: Mapping[str, tuple[Tensor, int, int]], chunk: int) -> None:
    for name, (x, heads, width) in given.items():
        wanted = (problem.batch, heads, chunk, width)
        if x.shape != wanted or x.dtype != getattr(torch, problem.dtype):
            raise UsageError(
                f"{name}: {problem.dtype} {list(wanted)} is needed, "
                f"not {str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
            )
