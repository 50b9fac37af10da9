"""Models from presets and configs: sizes, weights, fake tensors, and arguments that are refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError
from attnbench.contract.mixers import MixerConfig
from attnbench.model.builder import build_block, build_model
from attnbench.model.config import TransformerConfig
from attnbench.model.text import stdlib_tokens

LSTM = str(Path(__file__).parents[1] / "toys" / "lstm_mixer.py")
PUBLISHED = {
    "bert-base": 109_514_298,  # with the masked-language head
    "gpt2": 124_439_808,
    "llama-3-8b": 8_030_261_248,
    "qwen2.5-7b": 7_615_616_512,
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(preset):
    with FakeTensorMode():
        model = build_model(preset, "sdpa", dtype="bfloat16")
    assert model.param_count == PUBLISHED[preset]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("position", ["rope", "learned", "sinusoidal"])
def test_runs_under_fake_tensors_at_lengths_that_would_not_fit(position, device):
    with FakeTensorMode(), torch.no_grad():
        model = build_model("tiny", "sdpa", device=device, position=position, max_seqlen=1 << 17)
        tokens = torch.zeros(2, 1 << 17, dtype=torch.int64, device=device)
        out = model(tokens)
        assert out.shape == (2, 1 << 17, 256)
        assert out.device.type == device


def test_running_under_fake_tensors_leaves_a_real_model_alone():
    model = build_model("tiny", "naive")
    tokens = stdlib_tokens(1, 8)
    with torch.no_grad():
        before = model(tokens)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = build_model("tiny", "naive")
            fake(mode.from_tensor(tokens), lengths=[5])
        assert torch.equal(model(tokens), before)


def test_training_graph_under_fake_tensors():
    with FakeTensorMode():
        model = build_model("tiny", "naive")
        model(torch.zeros(2, 16, dtype=torch.int64)).sum().backward()
        assert all(p.grad is not None for p in model.parameters())


def test_shapes_and_dtypes():
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        out = build_model("small-decoder", "sdpa", dtype=dtype, num_layers=1)(stdlib_tokens(2, 5))
        assert out.shape == (2, 5, 256)
        assert str(out.dtype) == f"torch.{dtype}"
    assert build_model("tiny", dtype=torch.float64)(stdlib_tokens(1, 1)).dtype == torch.float64
    assert build_model("tiny")(stdlib_tokens(0, 5)).shape == (0, 5, 256)
    assert build_model("tiny")(stdlib_tokens(2, 0)).shape == (2, 0, 256)


def test_a_model_cast_after_it_was_built_asks_for_what_it_now_is():
    model = build_model("tiny", "naive").to(torch.float16)
    with torch.no_grad():
        assert model(stdlib_tokens(1, 4)).dtype == torch.float16
    mixer: Any = model.decoder.layers[0].mixer
    assert mixer.problem(1, 4, 4).dtype == "float16"


def test_weights_are_the_same_in_every_dtype_up_to_rounding():
    wide, narrow = build_model("tiny", dtype="float64"), build_model("tiny", dtype="float16")
    for name, parameter in wide.named_parameters():
        assert torch.equal(narrow.get_parameter(name), parameter.float().half())


def test_a_config_and_overrides():
    config = TransformerConfig(vocab_size=11, dim=16, num_layers=1, num_heads=2)
    assert build_model(config)(torch.tensor([[10]])).shape == (1, 1, 11)
    wider = build_model(config, dim=32, activation="swiglu")
    assert wider.config.head_dim == 16
    layer: Any = wider.decoder.layers[0]
    assert layer.ffn.gate.weight.shape == (128, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float31"}, r"dtype: 'float31' is none of .* \(did you mean 'float32'\?\)"),
        ({"dtype": torch.int8}, "dtype: 'int8' is none of"),
        ({"heads": 3}, r"heads: no field of TransformerConfig"),
        ({"device": "bogus"}, "device: 'bogus' cannot be used here"),
        ({"device": "cuda:99"}, "device: 'cuda:99' cannot be used here"),
        ({"device": "mps"}, "device: 'mps' cannot be used here"),
        ({"device": None}, "device: a name such as 'cpu' or 'cuda' is needed, not None"),
        ({"seed": -1}, "seed: a whole number of at least 0 is needed, not -1"),
        ({"seed": 1.5}, "seed: a whole number"),
        ({"seed": True}, "seed: a whole number"),
        ({"options": [1]}, r"options: a table of names and values is needed, not \[1\]"),
        ({"implementation": None}, "implementation: a name or an Implementation is needed, not NoneType"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        build_model("tiny", **arguments)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), r"tokens: int64 or int32 \[batch, seqlen\] is needed"),
        (torch.zeros(1, 3), "tokens: int64 or int32"),
        (torch.tensor([[0, 256]]), "tokens: from 0 to 255, not 256"),
        (torch.tensor([[0, -1]]), "tokens: from 0 to 255, not -1"),
    ],
)
def test_tokens_that_cannot_be_are_refused(tokens, message):
    with pytest.raises(UsageError, match=message):
        build_model("tiny")(tokens)


def test_sequences_beyond_the_learned_positions_are_refused_and_others_are_not():
    tokens = stdlib_tokens(1, 300)
    with pytest.raises(UsageError, match="the learned positions end at 256, 300 are needed"):
        build_model("tiny-gpt2")(tokens)
    assert build_model("tiny")(tokens).shape == (1, 300, 256)


def test_context_belongs_to_cross_attention():
    x = torch.zeros(1, 2, 32)
    with pytest.raises(UsageError, match="context: self-attention takes none"):
        build_block("tiny").mixer(x, context=x)


@pytest.mark.parametrize("given", [None, {"dim": 16}, 3])
def test_what_is_neither_preset_nor_config_is_refused(given):
    for build in (build_model, build_block):
        with pytest.raises(UsageError, match="preset_or_config: the name of a preset or a TransformerConfig"):
            build(given)


def _linear(form: MixerConfig) -> Any:
    return torch.nn.Linear(form.dim, form.dim)


def test_a_mixer_that_is_to_decode_needs_a_state():
    lstm = get_implementation(LSTM)
    stateless: Any = dataclasses.replace(lstm, make_mixer=_linear)
    with pytest.raises(UsageError, match="lstm: it supports decode, and the module of its make_mixer has no"):
        build_model("tiny", stateless)


def test_inputs_on_another_device_are_refused():
    tokens, elsewhere = stdlib_tokens(2, 5), torch.zeros(2, 5, dtype=torch.int64, device="meta")
    with pytest.raises(UsageError, match="tokens: on meta, and the model is on cpu"):
        build_model("tiny")(elsewhere)
    with pytest.raises(UsageError, match="target: on meta, and the model is on cpu"):
        build_model("tiny-translator")(tokens, elsewhere)
    with pytest.raises(UsageError, match="segments: on meta, and the tokens are on cpu"):
        build_model("tiny-bert")(tokens, segments=elsewhere)
