"""A block or a model in the middle of decoding. In: a module, a case. Out: a state, filled in every layer.

What is measured is one step behind a long context, not how the context came about: keys and values are drawn,
N(0, 1), and put into the states without attending; a mixer that has none reads drawn ``x`` instead.
"""

from typing import Any

import torch
from torch import Tensor, nn

from attnbench.contract.state import append
from attnbench.model.blocks import CrossingState, TransformerBlock
from attnbench.model.embeddings import Embeddings
from attnbench.model.mixer import AttentionMixer, AttentionState
from attnbench.plan.case import Case

from .inputs import draw


@torch.no_grad()
def filled_state(module: Any, case: Case, seed: int) -> Any:
    """Return the state of a block or a model whose rows hold all of their context but the new tokens.

    The same seed gives the same contents, whatever the module computes in.
    """
    context = Context(case, seed)
    if isinstance(module, TransformerBlock):
        return context.fill(module, module.new_state(case.batch, case.seqlen_k), 0)
    state = module.new_state(case.batch, case.seqlen_k)
    for turn, layer in enumerate(module.decoder.layers):
        state.layers[turn] = context.fill(layer, state.layers[turn], turn)
    state.lengths = context.lengths
    if any(isinstance(layer, CrossingState) for layer in state.layers):
        state.source_lengths = context.source_lengths
    return state


def position_tables(module: nn.Module, case: Case) -> tuple[Tensor, ...]:
    """Have the tables of positions made, once for a context and not by the step that is measured.

    Returns what is now kept, ``[S, …]`` each.
    """
    like = next(module.parameters()).detach()
    zero = (0,) * case.batch
    rotary = {
        part.table: part.table.rows(zero, case.seqlen_k, like)
        for part in module.modules()
        if isinstance(part, AttentionMixer) and part.table is not None
    }
    added = {
        part.sinusoids: part.sinusoids.rows(zero, case.seqlen_k, like)
        for part in module.modules()
        if isinstance(part, Embeddings) and part.sinusoids is not None
    }
    return (*rotary.values(), *added.values())


class Context:
    """What the layers hold: drawn once, and turned on by a position from each layer to the next."""

    def __init__(self, case: Case, seed: int) -> None:
        """Draw nothing yet."""
        self.case, self.seed = case, seed
        self.held = case.seqlen_k - case.seqlen_q
        self.source_lengths = case.key_lengths or (case.seqlen_k,) * case.batch
        self.lengths = tuple(n - case.seqlen_q for n in self.source_lengths)
        self._drawn: dict[str, Tensor] = {}

    def fill(self, layer: nn.Module, state: Any, turn: int) -> Any:
        """Return the layer's ``state``, filled."""
        if not isinstance(state, CrossingState):
            return self._fill_own(layer.mixer, state, turn)
        state.mixer = self._fill_own(layer.mixer, state.mixer, turn)
        k, v = self._keys_and_values("source", layer.cross, turn, self.case.seqlen_k)
        cross: Any = layer.cross
        state.cross = cross.context_state(k, v, self.source_lengths)
        return state

    def _fill_own(self, mixer: Any, state: Any, turn: int) -> Any:
        if not isinstance(mixer, AttentionMixer):
            return self._read(mixer, state, turn)
        k, v = self._keys_and_values("context", mixer, turn, self.held)
        own: AttentionState = state
        problem = mixer.problem(self.case.batch, self.held, self.held, key_lengths=self.lengths)
        params = None if mixer.core is None else dict(mixer.core.items())
        own.core = append(mixer.implementation, own.core, k, v, problem=problem, params=params)
        own.lengths = self.lengths
        return own

    def _read(self, mixer: Any, state: Any, turn: int) -> Any:
        """Let a mixer without keys and values read ``x`` up to its context."""
        if self.held == 0:
            return state
        weight = next(mixer.parameters())
        dim = self.case.config().dim
        x = self._turned("context.x", (self.held, dim), turn, weight)
        ragged = None if set(self.lengths) <= {self.held} else self.lengths
        _, state = mixer(x, lengths=ragged, state=state)
        return state

    def _keys_and_values(self, side: str, mixer: Any, turn: int, count: int) -> tuple[Tensor, Tensor]:
        """Return k ``[B, G, count, D]`` and v ``[B, G, count, Dv]``, laid out as projections leave them."""
        form, weight = mixer.config, mixer.q_proj.weight
        whole = (self.case.seqlen_k, form.num_kv_heads)
        k = self._turned(f"{side}.k", (*whole, form.head_dim), turn, weight)
        v = self._turned(f"{side}.v", (*whole, form.head_dim_v), turn, weight)
        return k[:, :count].transpose(1, 2), v[:, :count].transpose(1, 2)

    def _turned(self, name: str, shape: tuple[int, ...], turn: int, like: Tensor) -> Tensor:
        """Return the tensor of this name, ``[B, S, …]``, turned along S; its own copy for each layer."""
        if name not in self._drawn:
            whole = (self.case.batch, *shape)
            drawn = draw("normal", whole, self.case.dtype, seed=self.seed, name=name)
            self._drawn[name] = drawn.to(like.device, like.dtype)
        return self._drawn[name].roll(turn, dims=1)
