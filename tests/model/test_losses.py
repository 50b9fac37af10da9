"""Losses: those of every row by itself, padding aside, and zero where nothing is to be predicted."""

import pytest
import torch
from torch.nn import functional as F

from attnbench.model.builder import build_model
from attnbench.model.losses import masked_language_loss, next_token_loss, shift_right, teacher_forcing_loss
from attnbench.model.text import stdlib_tokens
from tests.model.translators import SOURCE_LENGTHS, TARGET_LENGTHS, pair, translator


@torch.no_grad()
def test_losses_are_those_of_every_row_by_itself() -> None:
    source, target = pair()
    model = translator()
    expected = summed = 0.0
    for b, (n, m) in enumerate(zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True)):
        read = shift_right(target[b : b + 1, :m], 0)
        assert read.tolist()[0] == [0, *target[b, : m - 1].tolist()]
        logits = model(source[b : b + 1, :n], read)[0]
        expected += float(F.cross_entropy(logits, target[b, :m], reduction="sum"))
        summed += m
    found = teacher_forcing_loss(model, source, target, SOURCE_LENGTHS, TARGET_LENGTHS)
    assert float(found) == pytest.approx(expected / summed, rel=1e-12)

    decoder = build_model("tiny", dtype="float64")
    logits = decoder(target, TARGET_LENGTHS)
    rows = [
        F.cross_entropy(logits[b, : m - 1], target[b, 1:m], reduction="sum")
        for b, m in enumerate(TARGET_LENGTHS)
    ]
    expected = float(sum(rows)) / sum(m - 1 for m in TARGET_LENGTHS)
    assert float(next_token_loss(logits, target, TARGET_LENGTHS)) == pytest.approx(expected, rel=1e-12)

    chosen = torch.zeros_like(target, dtype=torch.bool)
    chosen[0, 2] = chosen[2, 5] = True
    found = masked_language_loss(logits, target, chosen)
    expected = float(F.cross_entropy(logits[chosen], target[chosen]))
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_where_nothing_is_to_be_predicted_the_loss_and_its_gradient_are_zero() -> None:
    decoder = build_model("tiny", dtype="float64")
    for tokens, lengths in ((stdlib_tokens(2, 1), None), (stdlib_tokens(2, 4), [1, 0])):
        loss = next_token_loss(decoder(tokens, lengths), tokens, lengths)
        loss.backward()
        assert float(loss.detach()) == 0
    assert all(x.grad is None or not x.grad.any() for x in decoder.parameters())
