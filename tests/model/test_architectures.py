"""The encoder-decoder and the encoder-only model: parts, padding, teacher forcing, decoding, refusals."""

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Full, SlidingWindow
from attnbench.model.builder import build_block, build_model
from attnbench.model.losses import masked_language_loss, next_token_loss, shift_right, teacher_forcing_loss
from attnbench.model.text import stdlib_tokens

EXACT = ["naive", "sdpa", "sliding-window", "triton-flash"]
SOURCE_LENGTHS, TARGET_LENGTHS = [9, 4, 1], [7, 3, 6]


def translator(name: str = "naive", **overrides: Any) -> Any:
    if name == "sliding-window":
        overrides |= {"mask": SlidingWindow(64), "encoder_mask": SlidingWindow(64, causal=False)}
    dtype = "float32" if name == "triton-flash" else "float64"
    return build_model("tiny-translator", name, **({"dtype": dtype} | overrides))


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return stdlib_tokens(3, 9, seed=1), stdlib_tokens(3, 7, seed=2)


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


@torch.no_grad()
def test_a_cross_implementation_that_cannot_is_refused() -> None:
    with pytest.raises(UsageError, match="sliding-window does not support mask:full"):
        translator(cross_implementation="sliding-window")


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


@pytest.mark.parametrize("pieces", [[7], [1] * 7, [3, 1, 1, 2]], ids=str)
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rope", "none"])
@pytest.mark.parametrize("name", ["naive", "sdpa", "linear", "sliding-window"])
@torch.no_grad()
def test_a_target_in_pieces_equals_one_pass(name: str, position: str, pieces: list[int]) -> None:
    for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-5)):
        model = translator(name, position=position, dtype=dtype)
        source, target = pair()
        state = model.new_state(3, 7)
        found = []
        for i, piece in enumerate(target.split(pieces, dim=1)):
            first = (source, piece, SOURCE_LENGTHS) if i == 0 else (None, piece)
            found.append(model(*first, state=state))
        expected = model(source, target, SOURCE_LENGTHS)
        torch.testing.assert_close(torch.cat(found, dim=1), expected, rtol=tolerance, atol=tolerance)
        assert (state.lengths, state.source_lengths) == ((7,) * 3, tuple(SOURCE_LENGTHS))


@pytest.mark.parametrize("name", [*EXACT, "sdpa-math", "sdpa-flash", "linear"])
@torch.no_grad()
def test_targets_of_different_lengths_in_pieces_equal_one_pass(name: str) -> None:
    model = translator(name)
    tolerance = 1e-5 if name == "triton-flash" else 1e-12
    source, target = pair()
    whole, state = model(source, target, SOURCE_LENGTHS), model.new_state(3, 7)
    given: tuple[Any, Any] = (source, SOURCE_LENGTHS)
    for size, counts in ((3, [3, 0, 1]), (1, [1, 1, 1]), (4, [2, 4, 3])):
        begins = state.lengths
        piece = torch.stack([target[b].roll(-n)[:size] for b, n in enumerate(begins)])
        out = model(given[0], piece, given[1], counts, state)
        given = (None, None)
        for b, (n, count) in enumerate(zip(begins, counts, strict=True)):
            torch.testing.assert_close(out[b, :count], whole[b, n : n + count], rtol=0, atol=tolerance)
    assert state.lengths == (6, 5, 5)


@torch.no_grad()
def test_greedy_generation_is_the_argmax_of_the_whole_target_each_time() -> None:
    model = translator(tied_embeddings=False)
    source = stdlib_tokens(3, 9, seed=1)
    target = torch.zeros(3, 1, dtype=torch.int64)
    for _ in range(6):
        following = model(source, target, SOURCE_LENGTHS)[:, -1:].argmax(-1)
        target = torch.cat([target, following], dim=1)
    found = model.generate(source, 6, SOURCE_LENGTHS)
    assert torch.equal(found, target[:, 1:])
    assert len(found.unique()) > 2
    assert model.generate(source, 0).shape == (3, 0)


@torch.no_grad()
def test_a_row_goes_on_with_its_end_token_and_the_others_with_theirs() -> None:
    model = build_model("tiny", "sdpa", dtype="float64", tied_embeddings=False)
    tokens = stdlib_tokens(4, 6)
    free = model.generate(tokens, 8)
    end = int(free[0, 2])
    found = model.generate(tokens, 8, end_token=end)
    for row, expected in zip(found.tolist(), free.tolist(), strict=True):
        stop = expected.index(end) + 1 if end in expected else 8
        assert row == expected[:stop] + [end] * (8 - stop)


@pytest.mark.parametrize("chunk_size", [1, 3, 4, 100])
def test_a_prompt_in_chunks_is_the_prompt(chunk_size: int) -> None:
    model = build_model("tiny", "sdpa", dtype="float64", tied_embeddings=False)
    tokens, lengths = stdlib_tokens(3, 9), [9, 2, 5]
    assert torch.equal(
        model.generate(tokens, 5, lengths, chunk_size=chunk_size), model.generate(tokens, 5, lengths)
    )


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


@torch.no_grad()
def test_one_layer_of_an_encoder_decoder_reads_a_context() -> None:
    block = build_block("tiny-translator", "sdpa", dtype="float64")
    x, context = torch.randn(2, 5, 32).double(), torch.randn(2, 7, 32).double()
    expected, _ = block(x, context=context, context_lengths=[7, 3])
    state = block.new_state(2, 5)
    first, state = block(x[:, :2], state=state, context=context, context_lengths=[7, 3])
    rest, state = block(x[:, 2:], state=state)
    torch.testing.assert_close(torch.cat([first, rest], dim=1), expected, rtol=1e-12, atol=1e-12)
    encoder_layer = build_block("tiny-bert", "sdpa", dtype="float64")
    assert encoder_layer.cross is None
    assert encoder_layer.mixer.config.mask == Full()
