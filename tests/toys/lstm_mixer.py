"""A recurrent mixer without queries, keys or values: an LSTM in the place of attention."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attnbench.contract.cost import Cost
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.masks import Causal
from attnbench.contract.mixers import MixerConfig
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import Semantics

State = tuple[Tensor, Tensor]


class LSTMMixer(nn.Module):
    """``y = LSTM(x)`` over ``[B, S, dim]``; the state is the pair ``(h, c)``, each ``[1, B, dim]``."""

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        if config.mask != Causal() or config.cross:
            raise UsageError("lstm: a recurrence is causal self-mixing and nothing else")
        dtype = getattr(torch, config.dtype)
        self.lstm = nn.LSTM(config.dim, config.dim, batch_first=True, dtype=dtype, device=config.device)

    def new_state(self, batch: int, max_seqlen: int) -> State:
        """Zeros, as long as one position however long the sequence."""
        weight = self.lstm.get_parameter("weight_hh_l0")
        hidden = weight.new_zeros(1, batch, weight.shape[1])
        return hidden, torch.zeros_like(hidden)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        lengths: Sequence[int] | Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, State | None]:
        """Mix along S; padding gives zeros and leaves the state of its row alone."""
        before = state or self.new_state(x.shape[0], x.shape[1])
        if lengths is None:
            y, after = self.lstm(x, before)
            return y, after if state else None
        counts = torch.as_tensor(lengths, device="cpu")
        # A packed row holds at least one position; where it should hold none, take zeros and the old state.
        packed = pack_padded_sequence(x, counts.clamp(min=1), batch_first=True, enforce_sorted=False)
        packed_y, after = self.lstm(packed, before)
        y, _ = pad_packed_sequence(packed_y, batch_first=True, total_length=x.shape[1])
        some = (counts > 0).to(x.device)
        kept = tuple(
            torch.where(some[None, :, None], new, old) for new, old in zip(after, before, strict=True)
        )
        return y * some[:, None, None], kept if state else None  # type: ignore[return-value]


def _no_core(*args: Any, **kwargs: Any) -> NoReturn:
    raise UsageError("lstm has no q/k/v core: it exists at the levels block and model")


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, problem: Problem, params: Mapping[str, Tensor] | None = None
) -> AttentionOutput:
    """Refuse: there is no core."""
    _no_core()


def cost(problem: Problem) -> Cost:
    """Four gates, each a product with the input and one with the hidden state, at every position."""
    p = problem
    dim = p.num_heads * p.head_dim
    flops = (
        2 * 4 * dim * 2 * dim * p.batch * p.seqlen_q * {"fwd": 1, "decode": 1, "bwd": 2, "fwd_bwd": 3}[p.mode]
    )
    moved = 2 * p.batch * p.seqlen_q * dim * p.dtype_bytes
    return Cost(
        flops=flops, executed_flops=flops, compulsory_bytes=moved, leading={"flops": "16*B*n*(H*d)**2"}
    )


IMPLEMENTATION = Implementation(
    name="lstm",
    summary="Long short-term memory in the place of attention",
    paper="Long Short-Term Memory, Neural Computation 9(8), 1997",
    semantics=Semantics("lstm", _no_core, _no_core, has_lse=False),
    supports=frozenset(
        {
            "backward",
            "decode",
            "device:cpu",
            "device:cuda",
            "dtype:float32",
            "dtype:float64",
            "grouped-heads",
            "key-lengths",
            "mask:causal",
        }
    ),
    complexity=Complexity(time="O(n·dim²)", memory="O(n·dim)"),
    attention=attention,
    cost=cost,
    make_mixer=LSTMMixer,
)
