"""The two forms of decoder, written out by hand with einsum on the same weights, in float64."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import Full
from attnbench.contract.mixers import MixerConfig
from attnbench.model.builder import build_model
from attnbench.model.mixer import AttentionMixer
from attnbench.model.text import stdlib_tokens
from attnbench.model.weights import draw_weights

SEQLEN = 21


def causal_softmax(scores):
    hidden = torch.ones(SEQLEN, SEQLEN, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)


def test_gpt2_form_by_hand():
    model = build_model("tiny-gpt2", "naive", dtype="float64")
    for parameter in model.parameters():  # norms and biases too, which are 1 and 0 when drawn
        torch.nn.init.normal_(parameter, 0.5, 0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    tokens = stdlib_tokens(3, SEQLEN)
    w = {name: x.detach() for name, x in model.named_parameters()}

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def affine(x, name):
        return torch.einsum("bsi,oi->bso", x, w[f"{name}.weight"]) + w[f"{name}.bias"]

    x = w["embeddings.token.weight"][tokens] + w["embeddings.position.weight"][:SEQLEN]
    for i in range(2):
        layer = f"decoder.layers.{i}"
        normed = norm(x, f"{layer}.mixer_norm")
        q, k, v = (affine(normed, f"{layer}.mixer.{n}_proj").view(3, SEQLEN, 4, 8) for n in "qkv")
        weights = causal_softmax(torch.einsum("bshd,bthd->bhst", q, k) / math.sqrt(8))
        mixed = torch.einsum("bhst,bthd->bshd", weights, v).reshape(3, SEQLEN, 32)
        x = x + affine(mixed, f"{layer}.mixer.out_proj")
        inner = affine(norm(x, f"{layer}.ffn_norm"), f"{layer}.ffn.up")
        inner = 0.5 * inner * (1 + (math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)).tanh())
        x = x + affine(inner, f"{layer}.ffn.down")
    expected = torch.einsum("bsi,vi->bsv", norm(x, "decoder.norm"), w["embeddings.token.weight"])
    torch.testing.assert_close(model(tokens).detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_llama_form_by_hand_with_grouped_heads(tied):
    model = build_model("tiny", "naive", dtype="float64", tied_embeddings=tied)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.5, 0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    tokens = stdlib_tokens(3, SEQLEN)
    w = {name: x.detach() for name, x in model.named_parameters()}
    assert not [name for name in w if name.endswith("bias")]
    # Rotation as multiplication of complex numbers made of elements half a head apart.
    turns = torch.outer(torch.arange(SEQLEN).double(), 10000 ** (-torch.arange(4).double() / 4))
    turns = torch.polar(torch.ones_like(turns), turns)[:, None]

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"]

    def turned(x):
        pairs = torch.complex(x[..., :4], x[..., 4:]) * turns
        return torch.cat((pairs.real, pairs.imag), dim=-1)

    x = w["embeddings.token.weight"][tokens]
    for i in range(2):
        layer = f"decoder.layers.{i}"
        normed = norm(x, f"{layer}.mixer_norm")
        q, k, v = ((normed @ w[f"{layer}.mixer.{n}_proj.weight"].T).view(3, SEQLEN, -1, 8) for n in "qkv")
        assert (q.shape[2], k.shape[2], v.shape[2]) == (4, 2, 2)
        heads = []
        for h in range(4):
            scores = torch.einsum("bsd,btd->bst", turned(q)[:, :, h], turned(k)[:, :, h // 2]) / math.sqrt(8)
            heads.append(causal_softmax(scores) @ v[:, :, h // 2])
        x = x + torch.cat(heads, dim=-1) @ w[f"{layer}.mixer.out_proj.weight"].T
        normed = norm(x, f"{layer}.ffn_norm")
        gate, up = (normed @ w[f"{layer}.ffn.{n}.weight"].T for n in ("gate", "up"))
        x = x + (gate * gate.sigmoid() * up) @ w[f"{layer}.ffn.down.weight"].T
    head = w["embeddings.token.weight" if tied else "head.weight"]
    expected = norm(x, "decoder.norm") @ head.T
    torch.testing.assert_close(model(tokens).detach(), expected, rtol=1e-12, atol=1e-12)


def test_post_norm_relu_and_sinusoids_are_the_layer_of_torch():
    model = build_model(
        "tiny-gpt2",
        "naive",
        dtype="float64",
        norm_position="post",
        activation="relu",
        position="sinusoidal",
        scale_embeddings=True,
        num_layers=1,
    )
    theirs = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, dtype=torch.float64)
    layer: Any = model.decoder.layers[0]
    mixer = layer.mixer
    with torch.no_grad():
        projections = (mixer.q_proj, mixer.k_proj, mixer.v_proj)
        theirs.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        for ours, their in (
            (mixer.out_proj, theirs.self_attn.out_proj),
            (layer.ffn.up, theirs.linear1),
            (layer.ffn.down, theirs.linear2),
        ):
            their.load_state_dict(ours.state_dict())
    tokens = stdlib_tokens(2, SEQLEN)
    position = torch.arange(SEQLEN).double()[:, None] / 10000 ** (torch.arange(0, 32, 2).double() / 32)
    sinusoids = torch.stack((position.sin(), position.cos()), dim=-1).flatten(1)
    x = model.embeddings.token.weight[tokens] * math.sqrt(32) + sinusoids
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(SEQLEN, dtype=torch.float64)
    expected = F.linear(theirs(x, src_mask=hidden, is_causal=True), model.embeddings.token.weight)
    torch.testing.assert_close(model(tokens), expected, rtol=1e-12, atol=1e-12)


def test_value_heads_may_have_a_width_of_their_own():
    model = build_model("tiny", "naive", head_dim=6, head_dim_v=10)
    mixer: Any = model.decoder.layers[0].mixer
    assert mixer.q_proj.weight.shape == (24, 32)
    assert mixer.v_proj.weight.shape == (20, 32)
    assert mixer.out_proj.weight.shape == (32, 40)
    assert model(stdlib_tokens(2, 5)).shape == (2, 5, 256)


def test_qwen_form_has_biases_on_queries_keys_and_values_alone():
    model = build_model("qwen2.5-7b", "sdpa", dim=32, num_heads=4, num_kv_heads=2, num_layers=1, vocab_size=9)
    biases = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert biases == [f"decoder.layers.0.mixer.{n}_proj.bias" for n in "qkv"]


def test_two_calls_are_equal_in_training_and_in_evaluation():
    tokens = stdlib_tokens(2, SEQLEN)
    model = build_model("tiny-gpt2", "sdpa")
    first = model.train()(tokens)
    assert torch.equal(model(tokens), first)
    assert torch.equal(model.eval()(tokens), first)
    assert not [m for m in model.modules() if isinstance(m, torch.nn.modules.dropout._DropoutNd)]


@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_cross_attention_is_that_of_torch(name):
    config = MixerConfig(
        dim=32, num_heads=4, num_kv_heads=4, head_dim=8, mask=Full(), cross=True, bias=True, dtype="float64"
    )
    mixer = AttentionMixer(config, get_implementation(name))
    draw_weights(mixer, seed=0, depth=1)
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        weights = [projection.weight for projection in (mixer.q_proj, mixer.k_proj, mixer.v_proj)]
        theirs.in_proj_weight.copy_(torch.cat(weights))
        theirs.out_proj.load_state_dict(mixer.out_proj.state_dict())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 32, dtype=torch.float64, generator=generator)
    context = torch.randn(2, 7, 32, dtype=torch.float64, generator=generator)
    padding = torch.arange(7) >= torch.tensor([[7], [5]])
    expected = theirs(x, context, context, key_padding_mask=padding, need_weights=False)[0]
    actual, state = mixer(x, context, lengths=[7, 5])
    assert state is None
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
