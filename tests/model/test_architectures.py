"""The encoder-decoder and the encoder-only model: cores, padding, what is hidden, segments, tables."""

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attnbench.contract.errors import UsageError
from attnbench.model.builder import build_model
from attnbench.model.text import stdlib_tokens
from tests.model.translators import EXACT, SOURCE_LENGTHS, TARGET_LENGTHS, pair, translator


@pytest.mark.parametrize("name", EXACT)
@torch.no_grad()
def test_every_exact_core_gives_the_same_translation(name: str) -> None:
    source, target = pair()
    expected = translator()(source, target, SOURCE_LENGTHS, TARGET_LENGTHS)
    found = translator(name)(source, target, SOURCE_LENGTHS, TARGET_LENGTHS)
    tolerance = 1e-5 if name == "triton-flash" else 1e-12
    for b, n in enumerate(TARGET_LENGTHS):
        torch.testing.assert_close(found[b, :n].double(), expected[b, :n], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "given", "crossing"),
    [
        ("naive", {}, "naive"),
        ("sdpa", {}, "sdpa"),
        ("linear", {}, "linear"),
        ("triton-flash", {}, "triton-flash"),
        ("sliding-window", {}, "sdpa"),
        ("linear", {"cross_implementation": "naive"}, "naive"),
    ],
)
def test_cross_attention_falls_to_sdpa_where_the_core_cannot(
    name: str, given: dict[str, Any], crossing: str
) -> None:
    model = translator(name, **given)
    assert (model.implementation, model.cross_implementation) == (name, crossing)
    assert {layer.cross.implementation.name for layer in model.decoder.layers} == {crossing}
    assert build_model("tiny").cross_implementation is None


@pytest.mark.parametrize("preset", ["tiny-translator", "tiny-bert"])
@torch.no_grad()
def test_padding_changes_nothing_at_valid_positions(preset: str) -> None:
    model = build_model(preset, "sdpa", dtype="float64")
    source, target = pair()
    for fill in (0, 255):
        hidden = torch.arange(9) >= torch.tensor(SOURCE_LENGTHS)[:, None]
        padded = source.masked_fill(hidden, fill)
        if preset == "tiny-bert":
            whole = model(padded, SOURCE_LENGTHS)
            rows = [model(source[b : b + 1, :n])[0] for b, n in enumerate(SOURCE_LENGTHS)]
            counts = SOURCE_LENGTHS
        else:
            whole = model(padded, target, SOURCE_LENGTHS, TARGET_LENGTHS)
            counts = TARGET_LENGTHS
            rows = [
                model(source[b : b + 1, :n], target[b : b + 1, :m])[0]
                for b, (n, m) in enumerate(zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True))
            ]
        assert whole.isfinite().all()
        for b, n in enumerate(counts):
            torch.testing.assert_close(whole[b, :n], rows[b], rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_a_padding_mask_says_the_same_as_lengths() -> None:
    model = translator()
    source, target = pair()
    masks = [
        torch.arange(n) < torch.tensor(m)[:, None] for n, m in ((9, SOURCE_LENGTHS), (7, TARGET_LENGTHS))
    ]
    expected = model(source, target, SOURCE_LENGTHS, TARGET_LENGTHS)
    assert torch.equal(model(source, target, *masks), expected)
    assert torch.equal(
        model(source, target, torch.tensor(SOURCE_LENGTHS), torch.tensor(TARGET_LENGTHS)), expected
    )


def test_the_future_of_the_target_and_padding_of_the_source_never_leak() -> None:
    model = translator()
    source, target = pair()
    seen = {}

    def keep(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
            seen[name] = output
            output.retain_grad()

        return hook

    model.source_embeddings.register_forward_hook(keep("source"))
    model.target_embeddings.register_forward_hook(keep("target"))
    model(source, target, SOURCE_LENGTHS)[:, 3].sum().backward()
    assert torch.equal(seen["target"].grad[:, 4:], torch.zeros(3, 3, 32).double())
    assert seen["target"].grad[:, :4].abs().amin(dim=-1).gt(0).all()
    for b, n in enumerate(SOURCE_LENGTHS):
        assert torch.equal(seen["source"].grad[b, n:], torch.zeros(9 - n, 32).double())
        assert seen["source"].grad[b, :n].abs().sum(-1).gt(0).all()


def test_segments_are_added_and_the_first_is_the_default() -> None:
    model = build_model("tiny-bert", "sdpa", dtype="float64")
    tokens = stdlib_tokens(2, 6)
    first = torch.zeros_like(tokens)
    assert torch.equal(model(tokens, segments=first), model(tokens))
    mixed = first.clone()
    mixed[:, 3:] = 1
    embedded = model.embeddings(tokens, (0, 0), 6, mixed)
    by_hand = model.embeddings.token(tokens) + model.embeddings.position.weight[:6]
    by_hand = by_hand + model.embeddings.segment.weight[mixed]
    torch.testing.assert_close(embedded, F.layer_norm(by_hand, (32,)), rtol=1e-12, atol=1e-12)
    with pytest.raises(UsageError, match=r"segments: a tensor \[2, 6\] is needed, not \[2, 5\]"):
        model(tokens, segments=mixed[:, :5])
    with pytest.raises(UsageError, match="segments: from 0 to 1, not 2"):
        model(tokens, segments=mixed * 2)


def test_without_a_vocabulary_embeddings_go_in_and_features_come_out() -> None:
    model = build_model("tiny-translator", "sdpa", dtype="float64", vocab_size=0, position="none")
    x, y = torch.randn(2, 5, 32).double(), torch.randn(2, 4, 32).double()
    assert model(x, y).shape == (2, 4, 32)
    assert not [name for name, _ in model.named_parameters() if "embeddings" in name or "head" in name]
    with pytest.raises(UsageError, match=r"source: without a vocabulary, embeddings \[batch, seqlen, 32\]"):
        model(torch.zeros(2, 5, dtype=torch.int64), y)


def test_source_and_target_share_a_table_where_they_may() -> None:
    shared = translator()
    assert shared.source_embeddings.token is shared.target_embeddings.token
    apart = translator(source_vocab_size=100)
    assert apart.source_embeddings.token.weight.shape == (100, 32)
    assert apart.target_embeddings.token.weight.shape == (256, 32)
    with pytest.raises(UsageError, match="source: from 0 to 99, not 100"):
        apart(torch.tensor([[100]]), torch.tensor([[255]]))


@pytest.mark.parametrize("preset", ["tiny", "tiny-bert", "tiny-translator"])
def test_checkpointing_changes_no_gradient(preset: str) -> None:
    gradients = []
    for checkpointed in (False, True):
        model = build_model(preset, "sdpa", dtype="float64", checkpoint_activations=checkpointed)
        given = pair() if preset == "tiny-translator" else pair()[:1]
        model(*given).square().sum().backward()
        gradients.append({name: x.grad for name, x in model.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, grad in gradients[0].items():
        assert (grad is None) == (gradients[1][name] is None)
        assert grad is None or torch.equal(grad, gradients[1][name])


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@torch.no_grad()
def test_the_weights_of_a_place_are_the_same_for_every_core(norm_position: str) -> None:
    weights = [
        dict(translator(name, norm_position=norm_position, dtype="float32").named_parameters())
        for name in EXACT
    ]
    for first, other in itertools.pairwise(weights):
        assert first.keys() == other.keys()
        assert all(torch.equal(x, other[name]) for name, x in first.items())
    assert ("decoder.norm.weight" in weights[0]) == (norm_position == "pre")
