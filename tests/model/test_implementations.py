"""The same weights under every implementation, so that a difference in the output is the attention's."""

import pytest
import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.model.builder import build_block, build_model
from attnbench.model.text import stdlib_tokens

SEQLEN = 40
EXACT = ("sdpa", "sdpa-math", "triton-flash")


@torch.no_grad()
def logits(implementation, preset="tiny", lengths=None, **fields):
    return build_model(preset, implementation, **fields)(stdlib_tokens(2, SEQLEN), lengths)


@pytest.mark.parametrize("preset", ["tiny", "tiny-gpt2"])
@pytest.mark.parametrize("name", EXACT)
def test_logits_agree_with_naive(name, preset):
    expected = logits("naive", preset)
    assert expected.std() > 0.5
    torch.testing.assert_close(logits(name, preset), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("window_size", [SEQLEN, 4 * SEQLEN])
def test_a_window_as_long_as_the_sequence_is_causal(window_size):
    windowed = logits("sliding-window", mask=SlidingWindow(window_size))
    torch.testing.assert_close(windowed, logits("naive", mask=Causal()), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["sdpa", "triton-flash", "sliding-window"])
def test_a_short_window_agrees_with_naive_and_is_not_causal(name):
    mask = SlidingWindow(5)
    expected = logits("naive", mask=mask)
    torch.testing.assert_close(logits(name, mask=mask), expected, rtol=0, atol=2e-5)
    assert (expected - logits("naive")).abs().max() > 0.1


@pytest.mark.parametrize("name", ["sdpa", "triton-flash"])
def test_logits_agree_with_naive_under_key_lengths(name):
    lengths = [SEQLEN, 17]
    expected = logits("naive", lengths=lengths)
    actual = logits(name, lengths=lengths)
    for b, n in enumerate(lengths):
        torch.testing.assert_close(actual[b, :n], expected[b, :n], rtol=0, atol=2e-5)


def test_half_precision_agrees_within_its_rounding():
    expected = logits("naive")
    for name in ("naive", "sdpa", "triton-flash"):
        assert (logits(name, dtype="float16").float() - expected).abs().max() < 0.02


@pytest.mark.parametrize("name", ["sdpa", "triton-flash", "sliding-window", "linear"])
def test_weights_are_identical_whatever_the_implementation(name):
    naive = build_model("tiny-gpt2", "naive", seed=3)
    mask = SlidingWindow(8) if name == "sliding-window" else Causal()
    other = dict(build_model("tiny-gpt2", name, seed=3, mask=mask).named_parameters())
    assert set(other) == {n for n, _ in naive.named_parameters()}
    assert all(torch.equal(other[n], p) for n, p in naive.named_parameters())
    another = build_model("tiny-gpt2", "naive", seed=4)
    assert not torch.equal(another.embeddings.token.weight, naive.embeddings.token.weight)


def test_deeper_models_share_the_weights_of_their_first_layers_up_to_the_residual_scale():
    shallow, deep = build_model("tiny", num_layers=2), build_model("tiny", num_layers=8)
    for name, parameter in shallow.named_parameters():
        other = deep.get_parameter(name)
        scale = 0.5 if name.endswith(("out_proj.weight", "down.weight")) else 1.0
        torch.testing.assert_close(other, parameter * scale, rtol=1e-6, atol=0)


def test_linear_attention_differs_since_it_is_another_function():
    assert (logits("linear") - logits("naive")).abs().max() > 0.1
    small, large = (logits("linear", options={"chunk_size": size}) for size in (16, 64))
    torch.testing.assert_close(small, large, rtol=0, atol=2e-5)


def test_options_reach_the_implementation():
    with pytest.raises(UsageError, match="naive has no option 'chunk_size'"):
        build_model("tiny", "naive", options={"chunk_size": 16})


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("triton-flash", {"dtype": "bfloat16"}, "interpreter"),
        ("triton-flash", {"dtype": "float64"}, "triton-flash does not support dtype:float64"),
        ("sdpa-cudnn", {}, "CUDA"),
        ("sdap", {}, r"unknown implementation 'sdap' \(did you mean 'sdpa'\?\)"),
    ],
)
def test_what_an_implementation_cannot_do_is_refused_when_the_model_is_built(name, fields, message):
    with pytest.raises(UsageError, match=message):
        build_model("tiny", name, **fields)


def test_a_call_that_autograd_records_is_refused_without_a_backward_pass():
    model = build_model("tiny", "triton-flash")
    if "backward" in get_implementation("triton-flash").supports:
        pytest.skip("triton-flash has a backward pass")
    tokens = stdlib_tokens(1, 8)
    with pytest.raises(UsageError, match="does not support backward"):
        model(tokens)
    with torch.no_grad():
        assert model(tokens).shape == (1, 8, 256)


def test_gradients_reach_every_parameter_and_agree():
    tokens = stdlib_tokens(2, SEQLEN)
    gradients = []
    for name in ("naive", "sdpa"):
        model = build_model("tiny-gpt2", name, dtype="float64")
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        # A bias on the keys moves every logit of a row alike, which softmax does not see.
        assert gradient is not None, name
        assert (gradient.abs().max() > 1e-6) == (not name.endswith("k_proj.bias")), name
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_a_block_is_one_layer(name):
    block = build_block("tiny", name)
    x = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    y, state = block(x)
    assert y.shape == x.shape
    assert state is None
    after_mixer = x + block.mixer(block.mixer_norm(x))[0]
    assert torch.equal(y, after_mixer + block.ffn(block.ffn_norm(after_mixer)))
