"""Targets in pieces behind a source, and generation: greedy, to an end token, from a prompt in chunks."""

from typing import Any

import pytest
import torch

from attnbench.contract.masks import Full
from attnbench.model.builder import build_block, build_model
from attnbench.model.text import stdlib_tokens
from tests.model.translators import EXACT, SOURCE_LENGTHS, pair, translator


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
