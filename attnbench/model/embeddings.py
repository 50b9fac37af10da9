"""Token, position and segment embeddings: tokens ``[B, S]`` in, the first layer's ``[B, S, dim]`` out."""

from functools import partial

import torch
from torch import Tensor, nn

from attnbench.contract.errors import UsageError

from .config import TransformerConfig
from .layers import Embedding, make_norm
from .positions import PositionTable, sinusoidal_table
from .weights import is_real


class Embeddings(nn.Module):
    """``norm(token[t] * sqrt(dim) + position[p] + segment[s])``, of which a config has what it names.

    Without a vocabulary, embeddings ``[B, S, dim]`` come in place of tokens, and positions are added to them.
    ``token`` is a table to share with another one.
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocab_size: int,
        *,
        dtype: torch.dtype,
        device: str,
        name: str = "tokens",
        token: Embedding | None = None,
    ) -> None:
        super().__init__()
        self.config, self.vocab_size, self.name = config, vocab_size, name
        make = partial(Embedding, embedding_dim=config.dim, dtype=dtype, device=device)
        self.token = token or (make(vocab_size) if vocab_size else None)
        self.position = make(config.max_seqlen) if config.position == "learned" else None
        self.segment = make(config.num_segments) if config.num_segments else None
        self.norm = make_norm(config, dtype=dtype, device=device) if config.embedding_norm else None
        layout = partial(sinusoidal_table, dim=config.dim, layout=config.sinusoids)
        self.sinusoids = PositionTable(layout) if config.position == "sinusoidal" else None

    def check(self, tokens: Tensor) -> None:
        """Refuse what are no tokens of this vocabulary, or no embeddings where there is none.

        The range is looked at on the CPU only, where that costs no synchronisation.

        Raises:
            UsageError: another shape, type or range.
        """
        if not isinstance(tokens, Tensor):
            raise UsageError(f"{self.name}: a tensor is needed, not {type(tokens).__name__}")
        if not self.vocab_size:
            dim = self.config.dim
            if tokens.ndim != 3 or tokens.shape[2] != dim or not tokens.is_floating_point():
                raise UsageError(
                    f"{self.name}: without a vocabulary, embeddings [batch, seqlen, {dim}] are needed, "
                    f"not {tokens.dtype} {list(tokens.shape)}"
                )
            return
        if tokens.ndim != 2:
            raise UsageError(_wanted(self.name, tokens))
        _check_indices(self.name, tokens, self.vocab_size)
        assert self.token is not None
        if tokens.device != self.token.weight.device:
            raise UsageError(
                f"{self.name}: on {tokens.device}, and the model is on {self.token.weight.device}"
            )

    def forward(
        self, tokens: Tensor, starts: tuple[int, ...], end: int, segments: Tensor | None = None
    ) -> Tensor:
        """``[B, S, dim]``; row b begins at position ``starts[b]``, and no valid position reaches ``end``.

        Raises:
            UsageError: positions beyond a learned table, or segments that do not fit.
        """
        config = self.config
        x: Tensor = tokens if self.token is None else self.token(tokens)
        if config.scale_embeddings:
            x = x * config.dim**0.5
        if self.segment is not None:
            x = x + self._segments(segments, tokens)
        elif segments is not None:
            raise UsageError("segments: this model has none")
        if self.position is not None:
            x = x + self._learned(starts, end, tokens)
        if self.sinusoids is not None:
            x = x + self.sinusoids.rows(starts, tokens.shape[1], like=x).to(x.dtype)
        return x if self.norm is None else self.norm(x)

    def _segments(self, segments: Tensor | None, tokens: Tensor) -> Tensor:
        assert self.segment is not None
        if segments is None:
            first: Tensor = self.segment.weight[0]
            return first
        if not isinstance(segments, Tensor) or segments.shape != tokens.shape[:2]:
            came = list(segments.shape) if isinstance(segments, Tensor) else type(segments).__name__
            raise UsageError(f"segments: a tensor {list(tokens.shape[:2])} is needed, not {came}")
        if segments.device != tokens.device:
            raise UsageError(f"segments: on {segments.device}, and the tokens are on {tokens.device}")
        _check_indices("segments", segments, self.config.num_segments)
        found: Tensor = self.segment(segments)
        return found

    def _learned(self, starts: tuple[int, ...], end: int, tokens: Tensor) -> Tensor:
        assert self.position is not None
        longest = self.config.max_seqlen
        if end > longest:
            raise UsageError(f"{self.name}: the learned positions end at {longest}, {end} are needed")
        first = torch.tensor(starts, dtype=torch.int64, device=tokens.device)
        positions = first.unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
        # Padding may stand beyond the table.
        found: Tensor = self.position(positions.clamp(max=longest - 1))
        return found


def _wanted(name: str, tokens: Tensor) -> str:
    return f"{name}: int64 or int32 [batch, seqlen] is needed, not {tokens.dtype} {list(tokens.shape)}"


def _check_indices(name: str, indices: Tensor, count: int) -> None:
    if indices.dtype not in (torch.int64, torch.int32):
        raise UsageError(_wanted(name, indices))
    readable = indices.device.type == "cpu" and is_real(indices) and not torch.compiler.is_compiling()
    if readable and indices.numel():
        low, high = (int(value) for value in indices.aminmax())
        if low < 0 or high >= count:
            raise UsageError(f"{name}: from 0 to {count - 1}, not {low if low < 0 else high}")
