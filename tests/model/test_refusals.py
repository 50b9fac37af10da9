"""What the models refuse, and with which words: sources, targets, lengths, states, configs."""

from typing import Any

import pytest
import torch

from attnbench.contract.errors import UsageError
from attnbench.model.builder import build_model
from attnbench.model.losses import masked_language_loss, next_token_loss
from tests.model.translators import SOURCE_LENGTHS, pair, translator


@torch.no_grad()
def test_a_cross_implementation_that_cannot_is_refused() -> None:
    with pytest.raises(UsageError, match="sliding-window does not support mask:full"):
        translator(cross_implementation="sliding-window")


def test_what_does_not_belong_together_is_refused() -> None:
    model = translator()
    source, target = pair()
    state = model.new_state(3, 7)
    with pytest.raises(UsageError, match="source: None is accepted only with a state that holds one"):
        model(None, target)
    with pytest.raises(UsageError, match="source: None is accepted only with a state that holds one"):
        model(None, target, state=state)
    with pytest.raises(UsageError, match="source: 3 rows are needed, as in target, not 2"):
        model(source[:2], target)
    with pytest.raises(UsageError, match="source_lengths: 3 whole numbers from 0 to 9 are needed"):
        model(source, target, [9, 9, 10])
    with pytest.raises(UsageError, match="target_lengths: 3 whole numbers from 0 to 7 are needed"):
        model(source, target, None, [-1, 0, 0])
    with pytest.raises(UsageError, match=r"source_lengths: a padding mask of shape \[3, 9\] is needed, not"):
        model(source, target, torch.ones(3, 8, dtype=torch.bool))
    with pytest.raises(UsageError, match="target_lengths: a padding mask is true first and false after"):
        model(source, target, None, torch.arange(7).repeat(3, 1) > 2)
    model(source, target[:, :3], SOURCE_LENGTHS, state=state)
    with pytest.raises(UsageError, match="source: the state holds one already"):
        model(source, target[:, 3:], state=state)
    with pytest.raises(UsageError, match="source_lengths: the state holds them already"):
        model(None, target[:, 3:], SOURCE_LENGTHS, state=state)
    with pytest.raises(UsageError, match="state: made for 7 positions, 8 are needed"):
        model(None, target[:, 2:], state=state)
    assert state.lengths == (3, 3, 3)
    with pytest.raises(UsageError, match="logits: "):
        next_token_loss(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(UsageError, match="chosen: bool"):
        masked_language_loss(torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3))


def test_a_refused_source_leaves_the_state_usable() -> None:
    model = translator()
    source, target = pair()
    state = model.new_state(3, 7)
    for wrong in (source + 256, source.float(), source[:, 0]):
        with pytest.raises(UsageError, match="source: "):
            model(wrong, target[:, :1], state=state)
    with pytest.raises(UsageError, match="source_lengths: "):
        model(source, target[:, :1], [1], state=state)
    assert (state.lengths, state.source_lengths) == ((0, 0, 0), None)
    with torch.no_grad():
        found = model(source, target, state=state)
        torch.testing.assert_close(found, model(source, target), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("preset", "given", "message"),
    [
        ("tiny", {"head": "masked-language"}, "head: masked-language belongs to encoder-only"),
        ("tiny", {"num_segments": 2}, "num_segments: only encoder-only has segments"),
        ("tiny", {"start_token": 256}, "start_token: from 0 to 255, not 256"),
        ("tiny", {"vocab_size": -1}, "vocab_size: must be a whole number of at least 0, not -1"),
        ("tiny", {"sinusoids": "half"}, r"sinusoids: 'half' is none of interleaved, halves \(did you mean"),
        (
            "tiny",
            {"architecture": "encoder"},
            "architecture: 'encoder' is none of decoder-only, encoder-only",
        ),
    ],
)
def test_configs_that_cannot_be_are_refused(preset: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_model(preset, **given)
