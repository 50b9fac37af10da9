"""Real text: which files are held out, how passages are cut, and the trigram model to beat."""

import math
import random

import pytest
import torch

from attnbench.contract.errors import UsageError
from attnbench.model import text
from attnbench.model.trigram import TrigramModel


def test_whole_files_are_held_out_by_their_names_alone():
    files = text.stdlib_files()
    held_out = {name for name in files if text.is_held_out(name)}
    assert 0.03 < len(held_out) / len(files) < 0.2
    assert len(text.training_bytes()) + len(text.held_out_bytes()) == len(text.stdlib_bytes())
    assert {"enum.py", "subprocess.py", "traceback.py"} <= held_out
    assert not {"argparse.py", "dataclasses.py", "typing.py"} & held_out
    for name in held_out:
        assert files[name] in text.held_out_bytes()


def test_tokens_are_of_pythons_own_sources_and_the_same_for_the_same_seed():
    corpus = text.stdlib_bytes()
    assert len(corpus) > 1_000_000
    assert corpus.count(b"import ") > 1000
    tokens = text.stdlib_tokens(4, 100, seed=1)
    assert tokens.shape == (4, 100)
    assert tokens.dtype == torch.int64
    assert all(bytes(row.tolist()) in corpus for row in tokens)
    assert torch.equal(tokens, text.stdlib_tokens(4, 100, seed=1))
    assert not torch.equal(tokens, text.stdlib_tokens(4, 100, seed=2))


def test_text_that_is_not_there_is_a_clear_error(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"real text: 1 passages of \d+ bytes; there are \d+ bytes"):
        text.stdlib_tokens(1, len(text.stdlib_bytes()) + 1)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    text.stdlib_files.cache_clear()
    text.stdlib_bytes.cache_clear()
    with pytest.raises(UsageError, match="real text: this Python keeps no standard library sources"):
        text.stdlib_tokens(1, 10)


def test_random_passages_are_of_the_text_and_of_the_seed():
    corpus = bytes(range(256))
    passages = text.random_passages(corpus, 50, 7, torch.Generator().manual_seed(3))
    assert passages.shape == (50, 7)
    assert torch.equal(passages.diff(dim=1), torch.ones(50, 6, dtype=torch.int64))
    assert torch.equal(passages, text.random_passages(corpus, 50, 7, torch.Generator().manual_seed(3)))
    assert not torch.equal(passages, text.random_passages(corpus, 50, 7, torch.Generator().manual_seed(4)))


def test_even_passages_cover_the_text_and_share_no_byte():
    assert text.even_passages(b"abcdefgh", 4, 2).tolist() == [[97, 98], [99, 100], [101, 102], [103, 104]]
    assert text.even_passages(b"abcdefgh", 2, 3).tolist() == [[97, 98, 99], [101, 102, 103]]


@pytest.mark.parametrize(("batch", "seqlen"), [(3, 3), (0, 1), (1, 0), (1, 9)])
def test_even_passages_need_enough_text(batch: int, seqlen: int):
    with pytest.raises(UsageError, match=f"{batch} passages of {seqlen} bytes; there are 8 bytes"):
        text.even_passages(b"abcdefgh", batch, seqlen)


def test_trigram_finds_the_entropy_of_a_chain_of_second_order():
    """The next byte is the sum of the last two, and in a quarter of all cases anything of eight."""
    draw = random.Random(0)
    chain = [1, 2]
    for _ in range(250_000):
        chain.append(draw.randrange(8) if draw.random() < 0.25 else (chain[-1] + chain[-2]) % 8)
    expected, other = 0.75 + 0.25 / 8, 0.25 / 8
    entropy = -expected * math.log(expected) - 7 * other * math.log(other)
    model = TrigramModel.fit(bytes(chain[:50_000]))
    assert model.loss(bytes(chain[50_000:])) == pytest.approx(entropy, rel=0.02)


def test_trigram_is_a_distribution_and_never_certain():
    model = TrigramModel.fit(text.stdlib_bytes()[:200_000])
    for context in (b"de", b"  ", b"se"):
        losses = [model.loss(context + bytes([byte])) for byte in range(256)]
        assert math.fsum(math.exp(-loss) for loss in losses) == pytest.approx(1, rel=1e-12)
        assert all(math.isfinite(loss) for loss in losses)


def test_trigram_is_better_than_counting_less():
    files = list(text.stdlib_files().values())
    fitted = TrigramModel.fit(b"".join(files[:60]))
    judged = b"".join(files[60:80])
    pairs = TrigramModel(fitted.ones, fitted.twos, fitted.threes, fitted.weights.copy())
    pairs.weights[:] = [0.05, 0.95, 0.0]
    assert fitted.loss(judged) < pairs.loss(judged) - 0.3 < math.log(256)


def test_trigram_needs_text():
    with pytest.raises(UsageError, match="needs 100 bytes at least, not 99"):
        TrigramModel.fit(bytes(99))
