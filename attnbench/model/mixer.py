"""The mixer round every q/k/v core: projections, heads, rotary positions, state; ``[B, S, dim]`` in, out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import Implementation, require_support
from attnbench.contract.masks import Full
from attnbench.contract.mixers import MixerConfig
from attnbench.contract.problem import Problem
from attnbench.contract.state import append, extend, new_state, read

from .layers import Linear
from .lengths import Lengths, row_lengths, sizes
from .positions import PositionTable, RotaryPositions, rotate
from .weights import device_type

Context = Tensor | tuple[Tensor, Tensor]
"""What keys and values are made from: ``[B, Sk, width]``, or one tensor for each of the two."""


def mixer_problem(config: MixerConfig, batch: int, seqlen_q: int, seqlen_k: int, **given: Any) -> Problem:
    """The attention problem of a mixer of this form; ``given`` are other fields of ``Problem``."""
    form: dict[str, Any] = {
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "head_dim_v": config.head_dim_v,
        "dtype": config.dtype,
        "device": torch.device(config.device).type,
        "mask": Full() if config.cross else config.mask,
        "scale": config.scale,
        "options": config.options,
    }
    return Problem(batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k, **(form | given))


@dataclass
class AttentionState:
    """What self-attention remembers: the core's own state, how many positions each batch row has filled, and
    for how many it was made.
    """

    core: Any
    lengths: tuple[int, ...]
    max_seqlen: int


@dataclass
class ContextState:
    """What cross-attention remembers once it was given its context, and how many positions of each row are
    valid: a state of the core's own where the core can ``read`` one, else keys ``[B, G, Sk, D]`` and values
    ``[B, G, Sk, Dv]``.
    """

    batch: int
    keys_values: tuple[Tensor, Tensor] | None = None
    core: Any = None
    lengths: tuple[int, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether no context was given yet."""
        return self.keys_values is None and self.core is None

    def keep(self) -> "Callable[[], ContextState]":
        """Return what puts it back as it is now; what it holds is never written again."""
        saved = dict(vars(self))

        def restore() -> ContextState:
            vars(self).update(saved)
            return self

        return restore


class AttentionMixer(nn.Module):
    """``out_proj(core(q_proj(x), k_proj(c), v_proj(c)))`` by heads, with ``c`` the context or ``x`` itself.

    ``implementation`` is the core: ``q [B, H, S, D]``, ``k [B, G, Sk, D]``, ``v [B, G, Sk, Dv]``. Its learned
    parts are the parameters ``core.*``, drawn from ``generator``. Layers of one model share a ``table`` of
    rotary positions.

    Raises:
        UsageError: the implementation does not support what it is given, here or in ``forward``.
    """

    def __init__(
        self,
        config: MixerConfig,
        implementation: Implementation,
        *,
        table: PositionTable | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.implementation = implementation
        make = partial(Linear, dtype=getattr(torch, config.dtype), device=config.device)
        self.q_proj = make(config.dim, config.num_heads * config.head_dim, bias=config.bias)
        self.k_proj = make(config.key_dim, config.num_kv_heads * config.head_dim, bias=config.bias)
        self.v_proj = make(config.value_dim, config.num_kv_heads * config.head_dim_v, bias=config.bias)
        self.out_proj = make(config.num_heads * config.head_dim_v, config.dim, bias=bool(config.out_bias))
        rotary = config.rotary and not config.cross
        self.table = (table or RotaryPositions(config.head_dim, config.rope_base)) if rotary else None
        self.core = self._core_parameters(generator or torch.Generator().manual_seed(0))

    def _core_parameters(self, generator: torch.Generator) -> nn.ParameterDict | None:
        longest = self.config.max_seqlen
        problem = require_support(self.implementation, self.problem(1, longest, longest))
        if self.implementation.init_params is None:
            return None
        drawn = self.implementation.init_params(problem, generator)
        placed = {name: t.to(self.config.device, self.q_proj.weight.dtype) for name, t in drawn.items()}
        return nn.ParameterDict(placed)

    def problem(self, batch: int, seqlen_q: int, seqlen_k: int, mode: str = "fwd", **given: Any) -> Problem:
        """The attention problem of one call; ``given`` are other fields of ``Problem``."""
        weight = self.q_proj.weight
        now = {"dtype": str(weight.dtype).removeprefix("torch."), "device": device_type(weight)}
        return mixer_problem(self.config, batch, seqlen_q, seqlen_k, mode=mode, **(now | given))

    def new_state(self, batch: int, max_seqlen: int) -> AttentionState | ContextState:
        """An empty state for ``batch`` rows: of at most ``max_seqlen`` positions, or of the context."""
        if self.config.cross:
            return ContextState(batch)
        # Where the weights are, which is not always the device that they stand for.
        problem = self.problem(batch, max_seqlen, max_seqlen, device=self.q_proj.weight.device.type)
        return AttentionState(new_state(self.implementation, problem, max_seqlen), (0,) * batch, max_seqlen)

    def forward(
        self,
        x: Tensor,
        context: Context | None = None,
        lengths: Lengths | None = None,
        state: Any = None,
    ) -> tuple[Tensor, Any]:
        """Mix ``x [B, S, dim]`` along S; returns ``[B, S, dim]`` and the state, which has moved on in place.

        ``lengths`` counts the valid positions of each row of the keys' side, or marks them (booleans
        ``[B, Sk]``); later ones are hidden from every query, and what comes out at padding is finite and
        means nothing. With a ``state``, ``x`` follows the positions that the state holds, or meets the
        context that was given with it first, and autograd records nothing.

        Raises:
            UsageError: a context where there is none or none where one is needed, shapes or lengths that do
                not fit it or the state, and what the implementation does not support.
        """
        if x.ndim != 3 or x.shape[2] != self.config.dim:
            raise UsageError(f"x: [batch, seqlen, {self.config.dim}] is needed, not {list(x.shape)}")
        with torch.set_grad_enabled(torch.is_grad_enabled() and state is None):
            mix = self._crossing if self.config.cross else self._self_attending
            out = mix(x, context, lengths, state)
            y: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))
        return y, state

    def _crossing(self, x: Tensor, context: Context | None, lengths: Lengths | None, state: Any) -> Tensor:
        held: ContextState = state or ContextState(x.shape[0])
        _require_rows(held.batch, x)
        found = held
        if held.empty:
            k, v, valid = self._keys_and_values(x.shape[0], context, lengths)
            found = ContextState(held.batch, (k, v), lengths=valid)
            if state is not None:
                found = self.context_state(k, v, valid)
        elif context is not None or lengths is not None:
            raise UsageError("context, lengths: the state holds them already, it takes them once")
        q = self._split(self.q_proj(x), self.config.num_heads)
        out = self._attend_to(found, q, "decode" if state is not None and q.shape[2] == 1 else "fwd")
        vars(held).update(vars(found))
        return out

    def context_state(self, k: Tensor, v: Tensor, lengths: tuple[int, ...]) -> ContextState:
        """What cross-attention remembers of keys ``[B, G, Sk, D]`` and values ``[B, G, Sk, Dv]`` of which
        ``lengths[b]`` are valid.
        """
        batch, seqlen = k.shape[0], k.shape[2]
        if self.implementation.read is None:
            return ContextState(batch, (k, v), lengths=lengths)
        problem = self.problem(batch, seqlen, seqlen, key_lengths=lengths)
        empty = new_state(self.implementation, problem.replace(device=k.device.type), seqlen)
        params = self._parameters_of_core()
        core = append(self.implementation, empty, k, v, problem=problem, params=params)
        return ContextState(batch, core=core, lengths=lengths)

    def _attend_to(self, held: ContextState, q: Tensor, mode: str) -> Tensor:
        if held.keys_values is not None:
            k, v = held.keys_values
            ragged = None if set(held.lengths) <= {k.shape[2]} else held.lengths
            return self._attend(q, k, v, mode, key_lengths=ragged)
        problem = self.problem(q.shape[0], q.shape[2], 0, mode)
        params = self._parameters_of_core()
        return read(self.implementation, held.core, q, problem=problem, params=params).out

    def _keys_and_values(
        self, batch: int, context: Context | None, lengths: Lengths | None
    ) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """Return keys and values of the context, and how many of them are valid in each row."""
        if context is None:
            raise UsageError("context: cross-attention needs one")
        keys, values = context if isinstance(context, tuple) else (context, context)
        wanted = (batch, keys.shape[1] if keys.ndim > 1 else 0)
        for of, given, width in (
            ("keys", keys, self.config.key_dim),
            ("values", values, self.config.value_dim),
        ):
            if given.shape != (*wanted, width):
                raise UsageError(f"context: {of} come from {[*wanted, width]}, not {list(given.shape)}")
        valid = row_lengths(lengths, *wanted)
        k = self._split(self.k_proj(keys), self.config.num_kv_heads)
        return k, self._split(self.v_proj(values), self.config.num_kv_heads), valid

    def _self_attending(
        self, x: Tensor, context: Context | None, lengths: Lengths | None, state: Any
    ) -> Tensor:
        if context is not None:
            raise UsageError("context: self-attention takes none")
        batch, seqlen = sizes(x)
        valid = row_lengths(lengths, batch, seqlen)
        ragged = None if set(valid) <= {seqlen} else valid
        if state is not None:
            _require_rows(len(state.lengths), x)
            ends = tuple(start + count for start, count in zip(state.lengths, valid, strict=True))
            if max(ends, default=0) > state.max_seqlen:
                raise UsageError(f"state: made for {state.max_seqlen} positions, {max(ends)} are needed")
        q = self._split(self.q_proj(x), self.config.num_heads)
        k = self._split(self.k_proj(x), self.config.num_kv_heads)
        v = self._split(self.v_proj(x), self.config.num_kv_heads)
        if self.table is not None:
            starts = (0,) * batch if state is None else state.lengths
            rows = self.table.rows(starts, seqlen, like=x)
            q, k = rotate(q, rows), rotate(k, rows)
        if state is None:
            return self._attend(q, k, v, "fwd", key_lengths=ragged)
        output, state.core = extend(
            self.implementation,
            state.core,
            q,
            k,
            v,
            problem=self.problem(
                batch, seqlen, seqlen, "decode" if seqlen == 1 else "fwd", key_lengths=ragged
            ),
            params=self._parameters_of_core(),
        )
        state.lengths = ends
        return output.out

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        """``[B, S, heads * D]`` to ``[B, heads, S, D]``."""
        by_heads: Tensor = x.unflatten(-1, (heads, -1))
        return by_heads.transpose(1, 2)

    def _parameters_of_core(self) -> dict[str, Tensor] | None:
        return None if self.core is None else dict(self.core.items())

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mode: str, **given: Any) -> Tensor:
        if torch.is_grad_enabled() and q.requires_grad:
            mode = "fwd_bwd"
        problem = self.problem(q.shape[0], q.shape[2], k.shape[2], mode, **given)
        require_support(self.implementation, problem)
        return self.implementation.attention(q, k, v, problem=problem, params=self._parameters_of_core()).out


def _require_rows(made_for: int, x: Tensor) -> None:
    if x.shape[0] != made_for:
        raise UsageError(f"state: made for {made_for} rows, x has {x.shape[0]}")
