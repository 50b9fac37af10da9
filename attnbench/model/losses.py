"""What a model is trained on: mean cross-entropy in nats per predicted token, padding left out.

Where nothing is to be predicted the loss is 0, and so is its gradient.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from attnbench.contract.errors import UsageError

from .lengths import Lengths, row_lengths

if TYPE_CHECKING:
    from .encoder_decoder import EncoderDecoder

IGNORED = -100
"""The label that cross-entropy leaves out."""


def next_token_loss(logits: Tensor, tokens: Tensor, lengths: Lengths | None = None) -> Tensor:
    """``-mean log p(tokens[t + 1] | tokens[..t])`` of a decoder-only model.

    ``logits [B, S, vocab]`` are those of ``tokens [B, S]``; a scalar comes out.

    Raises:
        UsageError: shapes that do not belong together, or lengths that do not fit.
    """
    valid = row_lengths(lengths, len(tokens), tokens.shape[1])
    return _cross_entropy(logits[:, :-1], tokens[:, 1:], tuple(max(n - 1, 0) for n in valid))


def shift_right(target: Tensor, start_token: int) -> Tensor:
    """What a decoder reads while it learns ``target [B, T]``: ``start_token``, then the target but its last.

    Teacher forcing: at each position it sees the true tokens before (arXiv 1706.03762, section 3.1).
    """
    shifted = target.roll(1, dims=1)
    shifted[:, :1] = start_token
    return shifted


def teacher_forcing_loss(
    model: "EncoderDecoder",
    source: Tensor,
    target: Tensor,
    source_lengths: Lengths | None = None,
    target_lengths: Lengths | None = None,
) -> Tensor:
    """``-mean log p(target[t] | target[..t-1], source)`` of an encoder-decoder, a scalar.

    ``source [B, S]``, ``target [B, T]``; the target is shifted here.

    Raises:
        UsageError: what the model refuses.
    """
    valid = row_lengths(target_lengths, len(target), target.shape[1], name="target_lengths")
    read = shift_right(target, model.config.start_token)
    return _cross_entropy(model(source, read, source_lengths, target_lengths), target, valid)


def masked_language_loss(logits: Tensor, tokens: Tensor, chosen: Tensor) -> Tensor:
    """``-mean log p(tokens[t])`` over the ``chosen [B, S]`` positions, whose tokens the model could not see.

    ``logits [B, S, vocab]``. Source: arXiv 1810.04805.

    Raises:
        UsageError: shapes that do not belong together.
    """
    if chosen.shape != tokens.shape or chosen.dtype != torch.bool:
        raise UsageError(
            f"chosen: bool {list(tokens.shape)} is needed, not {chosen.dtype} {list(chosen.shape)}"
        )
    _check(logits, tokens)
    labels = tokens.long().masked_fill(~chosen, IGNORED)
    return _summed(logits, labels) / chosen.sum().clamp(min=1)


def _check(logits: Tensor, tokens: Tensor) -> None:
    if logits.shape[:2] != tokens.shape:
        raise UsageError(
            f"logits: [B, S, vocab] over tokens {list(tokens.shape)} are needed, not {list(logits.shape)}"
        )


def _cross_entropy(logits: Tensor, labels: Tensor, valid: tuple[int, ...]) -> Tensor:
    """The mean over the first ``valid[b]`` positions of each row."""
    _check(logits, labels)
    labels = labels.long()
    if any(n < labels.shape[1] for n in valid):
        ends = torch.tensor(valid, device=labels.device).unsqueeze(1)
        labels = labels.masked_fill(torch.arange(labels.shape[1], device=labels.device) >= ends, IGNORED)
    return _summed(logits, labels) / max(sum(valid), 1)


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
