"""What the examples claim: short forms that learn something, and in `make test-long` the marks they print."""

import pytest
import torch

from attnbench.model.text import held_out_bytes
from examples import train_decoder, train_reverse


def test_the_decoder_learns():
    model = train_decoder.trained_decoder("sdpa", steps=16, seqlen=64, seed=0)
    judged = held_out_bytes()[:8192]
    assert train_decoder.held_out_loss(model, judged, 64) < 3.1  # 5.5 before, 3.2 by single bytes


def test_passages_grow_to_the_longest():
    lengths = [train_decoder.passage_length(step, 9, 256) for step in range(9)]
    assert lengths == [64] * 3 + [128] * 3 + [256] * 3


def test_sequences_and_their_reversals():
    generator = torch.Generator().manual_seed(0)
    pairs = train_reverse.draw_pairs(200, 5, generator, held_out=True)
    for source, target, length, target_length in zip(*(part.tolist() for part in pairs), strict=True):
        assert 1 <= length <= 5
        assert target_length == length + 1
        assert target[:target_length] == [*source[:length][::-1], train_reverse.END]
        assert set(source[length:]) | set(target[length:]) <= {train_reverse.END}
        assert sum(source[:length]) % 7 == 0
        assert min(source[:length]) >= train_reverse.FIRST_WORD
    source, _, lengths, _ = train_reverse.draw_pairs(200, 5, generator, held_out=False)
    inside = torch.arange(5) < lengths.unsqueeze(1)
    assert ((source * inside).sum(dim=1) % 7 != 0).all()


@pytest.mark.long
def test_short_sequences_are_reversed():
    model = train_reverse.trained_reverser("sdpa", steps=100, longest=3, seed=0)
    assert train_reverse.exact_share(model, 3, torch.Generator().manual_seed(1)) > 0.9


@pytest.mark.parametrize("example", [train_decoder, train_reverse])
def test_what_cannot_be_is_a_usage_error(example, capsys):
    with pytest.raises(SystemExit) as stopped:
        example.main(["--steps", "0"])
    assert stopped.value.code == 2
    assert "--steps" in capsys.readouterr().err


@pytest.mark.parametrize("example", [train_decoder, pytest.param(train_reverse, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "{}"], "a folder; a file is needed"),
        (["--out", "{}/missing/model.safetensors"], "there is no folder"),
        (["--implementation", "nahive"], "did you mean 'naive'?"),
        (["--seed", "-1"], "seed: a whole number of at least 0 is needed, not -1"),
    ],
)
def test_what_cannot_be_is_told_in_a_line_before_training(
    example, arguments, message, tmp_path, capsys, monkeypatch
):
    def trained(*_, **__):
        raise AssertionError("it trains")

    monkeypatch.setattr(example, "train", trained)
    with pytest.raises(SystemExit) as stopped:
        example.main([argument.format(tmp_path) for argument in arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.long
def test_the_decoder_beats_the_trigram_model():
    decoder, trigram = train_decoder.main([])
    assert decoder < trigram - 0.1


@pytest.mark.long
def test_over_99_percent_are_reversed_exactly():
    assert train_reverse.main([]) > 0.99
