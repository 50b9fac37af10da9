"""The mixer round every q/k/v core: projections, heads, rotary positions, state; ``[B, S, dim]`` in, out."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import Implementation, refusals
from attnbench.contract.mixers import MixerConfig
from attnbench.contract.problem import Problem
from attnbench.contract.state import KeyValueCache, extend, new_state

from .layers import Linear
from .lengths import Lengths, row_lengths
from .positions import PositionTable, rotary_table, rotate
from .weights import device_type


def mixer_problem(config: MixerConfig, batch: int, seqlen_q: int, seqlen_k: int, **given: Any) -> Problem:
    """The attention problem of a mixer of this form; ``given`` are other fields of ``Problem``."""
    form: dict[str, Any] = {
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "dtype": config.dtype,
        "device": torch.device(config.device).type,
        "mask": config.mask,
        "scale": config.scale,
        "options": config.options,
    }
    return Problem(batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k, **(form | given))


def require_support(implementation: Implementation, problem: Problem) -> Problem:
    """Return ``problem``, or raise ``UsageError`` with every reason why the implementation refuses it."""
    reasons = refusals(implementation, problem)
    if reasons:
        raise UsageError("; ".join(reasons))
    return problem


@dataclass
class AttentionState:
    """What one layer remembers: the core's own state, and how many positions each batch row has filled."""

    core: Any
    lengths: tuple[int, ...]


class AttentionMixer(nn.Module):
    """``out_proj(core(q_proj(x), k_proj(c), v_proj(c)))`` by heads, with ``c`` the context or ``x`` itself.

    ``implementation`` is the core: ``q [B, H, S, D]``, ``k [B, G, Sk, D]``, ``v [B, G, Sk, Dv]``. Its learned
    parts are the parameters ``core.*``, drawn from ``generator``. ``head_dim_v`` is ``head_dim`` and
    ``out_bias`` is ``config.bias`` unless given. Layers of one model share a ``table`` of rotary positions.

    Raises:
        UsageError: the implementation does not support what it is given, here or in ``forward``.
    """

    def __init__(
        self,
        config: MixerConfig,
        implementation: Implementation,
        *,
        head_dim_v: int | None = None,
        out_bias: bool | None = None,
        table: PositionTable | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.implementation = implementation
        self.head_dim_v = config.head_dim if head_dim_v is None else head_dim_v
        make = partial(Linear, dtype=getattr(torch, config.dtype), device=config.device)
        self.q_proj = make(config.dim, config.num_heads * config.head_dim, bias=config.bias)
        self.k_proj = make(config.dim, config.num_kv_heads * config.head_dim, bias=config.bias)
        self.v_proj = make(config.dim, config.num_kv_heads * self.head_dim_v, bias=config.bias)
        out_bias = config.bias if out_bias is None else out_bias
        self.out_proj = make(config.num_heads * self.head_dim_v, config.dim, bias=out_bias)
        rotary = config.rotary and not config.cross
        self.table = (table or rotary_positions(config.head_dim, config.rope_base)) if rotary else None
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
        return mixer_problem(
            self.config, batch, seqlen_q, seqlen_k, mode=mode, head_dim_v=self.head_dim_v, **now, **given
        )

    def new_state(self, batch: int, max_seqlen: int) -> AttentionState:
        """An empty state for ``batch`` rows of at most ``max_seqlen`` positions."""
        problem = self.problem(batch, max_seqlen, max_seqlen)
        return AttentionState(new_state(self.implementation, problem, max_seqlen), (0,) * batch)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        lengths: Lengths | None = None,
        state: AttentionState | None = None,
    ) -> tuple[Tensor, AttentionState | None]:
        """Mix ``x [B, S, dim]`` along S; returns ``[B, S, dim]`` and the state, which has moved on in place.

        ``lengths`` counts the valid positions of each row of the keys' side; later ones are hidden from every
        query, and what comes out at padding is finite and means nothing. With a ``state``, ``x`` follows the
        positions that the state holds, and autograd records nothing.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and state is None):
            return self._mixed(x, context, lengths, state), state

    def _mixed(
        self, x: Tensor, context: Tensor | None, lengths: Lengths | None, state: AttentionState | None
    ) -> Tensor:
        if (context is not None) != self.config.cross:
            raise UsageError("context: cross-attention needs one, self-attention takes none")
        source = x if context is None else context
        batch, seqlen = x.shape[:2]
        valid = row_lengths(lengths, batch, source.shape[1])
        q = self._split(self.q_proj(x), self.config.num_heads)
        k = self._split(self.k_proj(source), self.config.num_kv_heads)
        v = self._split(self.v_proj(source), self.config.num_kv_heads)
        if self.table is not None:
            rows = self.table.rows(state.lengths if state else (0,) * batch, seqlen, like=x)
            q, k = rotate(q, rows), rotate(k, rows)
        if state is None:
            key_lengths = None if lengths is None or set(valid) <= {k.shape[2]} else valid
            out = self._attend(q, k, v, key_lengths=key_lengths)
        else:
            out = self._continue(q, k, v, valid, state)
        y: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))
        return y

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        """``[B, S, heads * D]`` to ``[B, heads, S, D]``."""
        by_heads: Tensor = x.unflatten(-1, (heads, -1))
        return by_heads.transpose(1, 2)

    def _parameters_of_core(self) -> dict[str, Tensor] | None:
        return None if self.core is None else dict(self.core.items())

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mode: str | None = None, **given: Any) -> Tensor:
        problem = require_support(self.implementation, self._problem_of(q, k.shape[2], mode, **given))
        return self.implementation.attention(q, k, v, problem=problem, params=self._parameters_of_core()).out

    def _problem_of(self, q: Tensor, seqlen_k: int, mode: str | None = None, **given: Any) -> Problem:
        differentiated = torch.is_grad_enabled() and q.requires_grad
        return self.problem(
            q.shape[0], q.shape[2], seqlen_k, "fwd_bwd" if differentiated else mode or "fwd", **given
        )

    def _continue(
        self, q: Tensor, k: Tensor, v: Tensor, new: tuple[int, ...], state: AttentionState
    ) -> Tensor:
        """Append a chunk to the state, ``new[b]`` of its positions in row b, and attend from it."""
        filled, chunk = state.lengths, k.shape[2]
        ends = tuple(old + count for old, count in zip(filled, new, strict=True))
        mode = "decode" if chunk == 1 else "fwd"
        if len(set(filled)) <= 1 and set(new) <= {chunk}:
            held = chunk if self.implementation.extend is not None else max(ends, default=0)
            require_support(self.implementation, self._problem_of(q, held, mode))
            output, state.core = extend(
                self.implementation,
                state.core,
                q,
                k,
                v,
                problem=self._problem_of(q, chunk, mode),
                params=self._parameters_of_core(),
            )
            out = output.out
        elif isinstance(state.core, KeyValueCache):
            self._write_rows(state.core, k, v, filled, new)
            held = max(ends)
            keys, values = state.core.k[:, :, :held], state.core.v[:, :, :held]
            out = self._attend(q, keys, values, mode, key_lengths=ends, query_start=filled)
        else:
            raise UsageError(
                f"lengths: {self.implementation.name} decodes only batches whose rows are equally long"
            )
        state.lengths = ends
        return out

    @staticmethod
    def _write_rows(
        cache: KeyValueCache, k: Tensor, v: Tensor, filled: tuple[int, ...], new: tuple[int, ...]
    ) -> None:
        """Write the valid positions of the chunk behind what each row holds."""
        held = max(old + count for old, count in zip(filled, new, strict=True))
        if held > cache.k.shape[2]:
            raise UsageError(f"the cache holds {cache.k.shape[2]} positions, {held} are needed")
        places = [(b, t, filled[b] + t) for b, count in enumerate(new) for t in range(count)]
        rows, sources, slots = torch.tensor(places, device=k.device).view(-1, 3).unbind(1)
        cache.k[rows, :, slots] = k[rows, :, sources]
        cache.v[rows, :, slots] = v[rows, :, sources]
        cache.length = held


def rotary_positions(head_dim: int, base: float) -> PositionTable:
    """The table of ``rotary_table`` for one head width and base."""
    return PositionTable(partial(rotary_table, head_dim=head_dim, base=base))
