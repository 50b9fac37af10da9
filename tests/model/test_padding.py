"""Batches of rows of different lengths, padded at their end (and rows that are padding throughout)."""

from typing import Any

import pytest
import torch

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Full, SlidingWindow
from attnbench.model.builder import build_model
from attnbench.model.lengths import row_lengths
from attnbench.model.text import stdlib_tokens

MASKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "full": {"mask": Full()},
    "window": {"mask": SlidingWindow(3)},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["naive", "sdpa"])
@pytest.mark.parametrize("preset", ["tiny", "tiny-gpt2"])
def test_padding_changes_nothing_at_valid_positions(preset, name, mask):
    model = build_model(preset, name, dtype="float64", **MASKS[mask])
    tokens = stdlib_tokens(3, 12)
    lengths = [12, 5, 1]
    with torch.no_grad():
        padded = model(tokens, lengths)
        changed = tokens.clone()
        changed[1, 5:], changed[2, 1:] = 0, 255
        other_padding = model(changed, torch.tensor(lengths))
        for b, n in enumerate(lengths):
            alone = model(tokens[b : b + 1, :n])[0]
            torch.testing.assert_close(padded[b, :n], alone, rtol=0, atol=1e-12)
            assert torch.equal(padded[b, :n], other_padding[b, :n])
    assert padded.isfinite().all()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("name", ["naive", "sdpa", "sdpa-math"])
def test_a_row_that_is_all_padding_is_finite_and_leaves_no_trace_in_the_gradients(name, mask, training):
    tokens = stdlib_tokens(2, 3)

    def gradients(batch, lengths):
        model = build_model("tiny-gpt2", name, dtype="float64", dim=8, num_heads=2, **MASKS[mask])
        out = model.train(training)(batch, lengths)
        assert out.isfinite().all()
        out[0].square().sum().backward()
        return {n: p.grad for n, p in model.named_parameters()}

    with_padding, alone = gradients(tokens, [3, 0]), gradients(tokens[:1], None)
    for parameter, gradient in alone.items():
        assert with_padding[parameter].isfinite().all()
        torch.testing.assert_close(with_padding[parameter], gradient, rtol=1e-12, atol=1e-13)


def test_a_row_that_is_all_padding_gets_zeros_from_attention():
    mixer: Any = build_model("tiny", "naive").decoder.layers[0].mixer
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    assert (mixer(x, lengths=[3, 0])[0][1] == 0).all()


@pytest.mark.parametrize("lengths", [[3], [3, 4, 5], [3, -1], [3, 9], [3.0, 2], [[3, 3]], [True, "a"]])
def test_lengths_that_do_not_fit_are_refused(lengths):
    model = build_model("tiny")
    with pytest.raises(UsageError, match="lengths: 2 whole numbers from 0 to 8 are needed, one for each row"):
        model(stdlib_tokens(2, 8), lengths)


def test_lengths_may_be_a_tensor():
    assert row_lengths(torch.tensor([3, 0]), 2, 3) == (3, 0)
    assert row_lengths(None, 2, 3) == (3, 3)
    with pytest.raises(UsageError):
        row_lengths(torch.tensor(3), 1, 3)
