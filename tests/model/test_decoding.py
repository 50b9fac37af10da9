"""Decoding with a state: a sequence in pieces is the sequence in one pass."""

from typing import Any

import pytest
import torch

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.model.builder import build_block, build_model
from attnbench.model.text import stdlib_tokens

SEQLEN = 24
CASES = [
    ("naive", Causal()),
    ("sdpa", Causal()),
    ("sdpa-math", Causal()),
    ("sdpa-flash", Causal()),
    ("naive", SlidingWindow(5)),
    ("sliding-window", SlidingWindow(5)),
    ("linear", Causal()),
]
IDS = [f"{name}-{mask.slug}" for name, mask in CASES]


def assert_pieces_equal_one_pass(model, pieces, tolerance):
    tokens = stdlib_tokens(2, sum(pieces))
    state = model.new_state(2, SEQLEN)
    with torch.no_grad():
        found = torch.cat([model(piece, state=state) for piece in tokens.split(pieces, dim=1)], dim=1)
        torch.testing.assert_close(found, model(tokens), rtol=0, atol=tolerance)
    assert state.lengths == (sum(pieces),) * 2


@pytest.mark.parametrize("pieces", [[23, 1], [1] * 6, [5, 1, 1, 9, 8]], ids=["prefill", "steps", "chunks"])
@pytest.mark.parametrize("preset", ["tiny", "tiny-gpt2"])
@pytest.mark.parametrize(("name", "mask"), CASES, ids=IDS)
def test_in_pieces_equals_one_pass(name, mask, preset, pieces):
    assert_pieces_equal_one_pass(build_model(preset, name, dtype="float64", mask=mask), pieces, 1e-12)
    assert_pieces_equal_one_pass(build_model(preset, name, dtype="float32", mask=mask), pieces, 1e-5)


@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(5)], ids=["causal", "window"])
def test_an_interpreted_kernel_in_pieces_equals_one_pass(mask):
    model = build_model("tiny", "triton-flash", num_heads=2, num_kv_heads=1, num_layers=1, mask=mask)
    assert_pieces_equal_one_pass(model, [5, 1, 2], 1e-5)


RAGGED = ((10, (10, 3, 0)), (4, (4, 4, 2)), (1, (1, 1, 1)), (1, (0, 1, 1)), (5, (1, 5, 5)))
"""Chunks: how long each is, and how many of its tokens each row has."""


def assert_ragged_rows_equal_one_pass(model, tolerance):
    tokens = stdlib_tokens(3, SEQLEN)
    whole = model(tokens)
    state = model.new_state(3, SEQLEN)
    for size, counts in RAGGED:
        begins = state.lengths
        piece = torch.stack([tokens[b, n : n + size] for b, n in enumerate(begins)])
        out = model(piece, counts, state)
        for b, (n, count) in enumerate(zip(begins, counts, strict=True)):
            torch.testing.assert_close(out[b, :count], whole[b, n : n + count], rtol=0, atol=tolerance)
    assert state.lengths == (16, 14, 9)


@pytest.mark.parametrize("position", ["rope", "learned", "sinusoidal", "none"])
@pytest.mark.parametrize(("name", "mask"), CASES, ids=IDS)
@torch.no_grad()
def test_rows_of_different_lengths_stand_at_their_own_positions(name, mask, position):
    for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-5)):
        model = build_model("tiny", name, dtype=dtype, mask=mask, position=position)
        assert_ragged_rows_equal_one_pass(model, tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "mask"), CASES, ids=IDS)
@torch.no_grad()
def test_pieces_in_16_bits_are_as_near_to_the_truth_as_one_pass(name, mask, dtype):
    model, exact = (build_model("tiny", name, dtype=kind, mask=mask) for kind in (dtype, "float64"))
    exact.load_state_dict(model.state_dict())  # the rounded weights
    tokens, state = stdlib_tokens(2, SEQLEN), model.new_state(2, SEQLEN)
    pieces = torch.cat([model(piece, state=state) for piece in tokens.split([9, 1, 5, 1, 8], dim=1)], dim=1)
    truth = exact(tokens)
    of_pieces, of_whole = ((found.double() - truth).abs().max() for found in (pieces, model(tokens)))
    rounding = torch.finfo(getattr(torch, dtype)).eps * truth.abs().max()
    assert of_pieces <= 2 * of_whole + 2 * rounding


@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(5)], ids=["causal", "window"])
@torch.no_grad()
def test_rows_of_different_lengths_in_an_interpreted_kernel(mask):
    model = build_model("tiny", "triton-flash", num_heads=1, num_kv_heads=1, num_layers=1, mask=mask)
    assert_ragged_rows_equal_one_pass(model, 1e-5)


@torch.no_grad()
def test_padding_may_stand_beyond_the_learned_positions():
    model = build_model("tiny-gpt2", "naive", dtype="float64", max_seqlen=8)
    tokens = stdlib_tokens(2, 8)
    state = model.new_state(2, 8)
    model(tokens[:, :7], [2, 7], state)
    piece = torch.stack([tokens[0, 2:5], tokens[1, 7:8].expand(3)])
    out = model(piece, [3, 1], state)
    torch.testing.assert_close(out[1, 0], model(tokens)[1, 7], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_block_decodes_too():
    block: Any = build_block("tiny", "sdpa", dtype="float64")
    x = torch.randn(2, 9, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = block.mixer.new_state(2, 9)
    first, state = block(x[:, :6], state=state)
    rest, state = block(x[:, 6:], state=state)
    torch.testing.assert_close(torch.cat([first, rest], dim=1), block(x)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "mask"),
    [("naive", Causal()), ("sdpa", Causal()), ("sliding-window", SlidingWindow(4)), ("linear", Causal())],
)
@torch.no_grad()
def test_greedy_generation_is_the_argmax_of_the_whole_sequence_each_time(name, mask):
    model = build_model("tiny", name, dtype="float64", tied_embeddings=False, mask=mask)
    tokens = stdlib_tokens(2, 6)
    sequence = tokens
    for _ in range(5):
        sequence = torch.cat([sequence, model(sequence)[:, -1:].argmax(-1)], dim=1)
    found = model.generate(tokens, 5)
    assert torch.equal(found, sequence[:, 6:])
    assert len(found.unique()) > 2


def test_generation_from_rows_of_different_lengths_equals_generation_row_by_row():
    model = build_model("tiny", "sdpa", dtype="float64", tied_embeddings=False)
    tokens = stdlib_tokens(2, 9)
    together = model.generate(tokens, 6, lengths=[9, 4])
    assert torch.equal(together[:1], model.generate(tokens[:1], 6))
    assert torch.equal(together[1:], model.generate(tokens[1:, :4], 6))


def test_generation_fills_the_learned_positions_to_the_last():
    model = build_model("tiny-gpt2", max_seqlen=8)
    assert model.generate(stdlib_tokens(1, 5), 4).shape == (1, 4)
    with pytest.raises(UsageError, match="the learned positions end at 8"):
        model.generate(stdlib_tokens(1, 5), 5)


def test_sampling_follows_the_softmax_of_the_logits_and_its_generator():
    model = build_model("tiny", "sdpa", vocab_size=5, tied_embeddings=False)
    tokens = torch.zeros(4000, 2, dtype=torch.int64)
    drawn = model.generate(tokens, 1, temperature=0.7, generator=torch.Generator().manual_seed(0))
    frequencies = torch.bincount(drawn.flatten(), minlength=5) / 4000
    with torch.no_grad():
        wanted = (model(tokens[:1])[0, -1] / 0.7).softmax(-1)
    assert (frequencies - wanted).abs().max() < 4 * (0.25 / 4000) ** 0.5
    again = model.generate(tokens, 1, temperature=0.7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)


def test_nothing_to_generate():
    assert build_model("tiny").generate(stdlib_tokens(2, 4), 0).shape == (2, 0)


@torch.no_grad()
def test_a_state_that_does_not_fit_is_refused_and_left_as_it_was():
    model = build_model("tiny")
    state = model.new_state(2, 8)
    model(stdlib_tokens(2, 6), state=state)
    with pytest.raises(UsageError, match="state: made for 8 positions, 9 are needed"):
        model(stdlib_tokens(2, 3), state=state)
    with pytest.raises(UsageError, match="state: made for 2 rows, tokens have 1"):
        model(stdlib_tokens(1, 1), state=state)
    assert state.lengths == (6, 6)
    model(stdlib_tokens(2, 2), state=state)
    with pytest.raises(UsageError, match="the learned positions end at 256, 257 were asked for"):
        build_model("tiny-gpt2").new_state(1, 257)


@pytest.mark.parametrize("name", ["naive", "linear", "triton-flash"])
def test_decoding_records_no_gradients(name):
    model = build_model("tiny", name)
    assert not model(stdlib_tokens(1, 2), state=model.new_state(1, 2)).requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens: a whole number of at least 0, not -1"),
        ({"max_new_tokens": 1, "temperature": -1.0}, "temperature: at least 0, not -1.0"),
        ({"max_new_tokens": 1, "lengths": [2, 0]}, "every row of a prompt needs at least one token"),
    ],
)
def test_generation_refuses_what_cannot_be(arguments, message):
    with pytest.raises(UsageError, match=message):
        build_model("tiny").generate(stdlib_tokens(2, 3), **arguments)


def foreign_states() -> list[Any]:
    other = build_model("tiny", "linear")
    shallow, translator = build_model("tiny", num_layers=1), build_model("tiny-translator")
    return [3, *(model.new_state(2, 8) for model in (other, shallow, translator))]


def test_a_state_of_another_model_is_refused() -> None:
    model, tokens = build_model("tiny"), stdlib_tokens(2, 4)
    for state in foreign_states():
        with pytest.raises(UsageError, match=r"state: (what new_state gives|made by a model of another)"):
            model(tokens, state=state)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_new_tokens": 1.5}, "max_new_tokens: a whole number of at least 0, not 1.5"),
        ({"max_new_tokens": "3"}, "max_new_tokens: a whole number of at least 0, not '3'"),
        ({"chunk_size": 1.5}, "chunk_size: a whole number of at least 1, not 1.5"),
        ({"temperature": "a"}, "temperature: at least 0, not 'a'"),
        ({"temperature": float("nan")}, "temperature: at least 0, not nan"),
        ({"end_token": 256}, "end_token: from 0 to 255, not 256"),
        ({"end_token": 1.5}, "end_token: from 0 to 255, not 1.5"),
        ({"lengths": 3}, "lengths: 2 whole numbers from 0 to 4 are needed, one for each row, not 3"),
        ({"lengths": {4: 1, 3: 2}}, "lengths: 2 whole numbers from 0 to 4 are needed"),
    ],
    ids=str,
)
def test_arguments_of_generate_that_cannot_be_name_themselves(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_model("tiny").generate(stdlib_tokens(2, 4), **({"max_new_tokens": 2} | given))


def test_no_rows_generate_no_rows_and_any_temperature_draws() -> None:
    model = build_model("tiny", tied_embeddings=False)
    assert model.generate(stdlib_tokens(2, 4)[:0], 3).shape == (0, 3)
    greedy = model.generate(stdlib_tokens(2, 4), 3)
    assert torch.equal(model.generate(stdlib_tokens(2, 4), 3, temperature=1e-45), greedy)


def test_sizes_of_a_state_name_themselves() -> None:
    with pytest.raises(UsageError, match="max_seqlen: a whole number of at least 0, not -1"):
        build_model("tiny").new_state(2, -1)
    with pytest.raises(UsageError, match=r"batch: a whole number of at least 0, not 2\.0"):
        build_model("tiny").new_state(2.0, 4)


@pytest.mark.parametrize(
    "tokens", [[1, 2], None, torch.zeros(1, 2, dtype=torch.int64, device="meta")], ids=str
)
def test_tokens_that_are_no_tensor_here_are_refused(tokens: Any) -> None:
    with pytest.raises(UsageError, match=r"tokens: (a tensor is needed|on meta, and the model is on cpu)"):
        build_model("tiny")(tokens)


def test_weights_load_all_or_none() -> None:
    model = build_model("tiny")
    before = {name: x.clone() for name, x in model.state_dict().items()}
    wrong = {name: torch.ones_like(x) for name, x in before.items()}
    wrong["decoder.norm.weight"] = torch.ones(3)
    wrong["extra"] = wrong.pop("embeddings.token.weight")
    listed = r"missing: embeddings\.token\.weight; extra: extra; misshaped: decoder\.norm"
    with pytest.raises(UsageError, match=listed):
        model.load_state_dict(wrong)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    model.load_state_dict(build_model("tiny", seed=1).state_dict())
    assert torch.equal(model.embeddings.token.weight, build_model("tiny", seed=1).embeddings.token.weight)
