"""Configs: what is derived, what is refused by name; presets are configs, and load no torch."""

import dataclasses
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.model.config import TransformerConfig
from attnbench.model.presets import load_preset, preset_names, preset_source


def make(**fields):
    return TransformerConfig(**({"vocab_size": 10, "dim": 32, "num_layers": 2, "num_heads": 4} | fields))


def test_sizes_that_are_left_out_are_derived():
    config = make()
    assert (config.num_kv_heads, config.head_dim, config.head_dim_v, config.ffn_dim) == (4, 8, 8, 128)
    assert config.num_encoder_layers == 0
    assert make(architecture="encoder-decoder").num_encoder_layers == 2
    assert make(head_dim=16).head_dim_v == 16
    assert config.mask == Causal()
    assert config.encoder_mask == Full()


def test_replacing_a_size_moves_what_was_derived_from_it_and_nothing_else():
    wider = make(ffn_dim=100, num_kv_heads=2).replace(dim=64)
    assert (wider.head_dim, wider.head_dim_v, wider.ffn_dim, wider.num_kv_heads) == (16, 16, 100, 2)
    assert make().replace(num_heads=8).num_kv_heads == 8
    assert make().replace(num_heads=8, head_dim=8).head_dim == 8
    assert make().replace() == make()


def test_a_mask_may_be_a_name_or_a_table():
    assert make(mask="full").mask == Full()
    assert make(mask={"name": "sliding-window", "window_size": 4}).mask == SlidingWindow(4)


def test_is_frozen_hashable_and_keyword_only():
    assert hash(make()) == hash(make())
    with pytest.raises(FrozenInstanceError):
        make().dim = 3
    with pytest.raises(TypeError):
        TransformerConfig("decoder-only", 10, 32, 2, 4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation": "glu"}, r"activation: 'glu' is none of relu, gelu, gelu-tanh, silu, swiglu"),
        ({"norm": "rms_norm"}, r"norm: 'rms_norm' is none of .* \(did you mean 'rmsnorm'\?\)"),
        ({"architecture": "decoder"}, r"architecture: .*\(did you mean 'decoder-only'\?\)"),
        ({"dim": 0}, "dim: must be a whole number of at least 1, not 0"),
        ({"num_layers": 2.0}, "num_layers: must be a whole number of at least 1, not 2.0"),
        ({"ffn_dim": -1}, "ffn_dim: must be a whole number of at least 0, not -1"),
        ({"num_heads": True}, "num_heads: must be a whole number"),
        ({"dim": 30}, "dim: 30 is not divisible by num_heads 4"),
        ({"num_kv_heads": 3}, "num_kv_heads: 3 does not divide num_heads 4"),
        ({"position": "rope", "head_dim": 7}, "head_dim: rotary positions rotate pairs"),
        ({"norm_eps": 0.0}, "norm_eps: must be a positive number, not 0.0"),
        ({"rope_base": float("inf")}, "rope_base: must be a positive number, not inf"),
        ({"rope_base": True}, "rope_base: must be a positive number, not True"),
        ({"norm_eps": True}, "norm_eps: must be a positive number, not True"),
        ({"mask": "casual"}, r"unknown mask 'casual' \(did you mean 'causal'\?\)"),
        ({"num_encoder_layers": 2}, "num_encoder_layers: only encoder-decoder has it, not decoder-only"),
        ({"source_vocab_size": 9}, "source_vocab_size: only encoder-decoder has it, not decoder-only"),
        ({"cross_implementation": "naive", "architecture": "encoder-only"}, "cross_implementation: only enc"),
        ({"cross_implementation": 3, "architecture": "encoder-decoder"}, "cross_implementation: a name is"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields, message):
    with pytest.raises(UsageError, match=message):
        make(**fields)


SWITCHES = [item.name for item in dataclasses.fields(TransformerConfig) if type(item.default) is bool]


@pytest.mark.parametrize("name", [*SWITCHES, "final_norm"])
@pytest.mark.parametrize("value", ["false", 0, 1, []])
def test_switches_are_booleans(name, value):
    with pytest.raises(UsageError, match=rf"{name}: must be True or False, not {re.escape(repr(value))}"):
        make(**{name: value})


@pytest.mark.parametrize("name", SWITCHES)
def test_only_a_final_norm_may_be_left_open(name):
    with pytest.raises(UsageError, match=f"{name}: must be True or False, not None"):
        make(**{name: None})


def test_an_encoder_decoder_becomes_a_decoder():
    config = make(architecture="encoder-decoder").replace(architecture="decoder-only")
    assert config == make()


def test_an_unknown_field_is_refused_with_the_nearest():
    with pytest.raises(
        UsageError, match=r"num_head: no field of TransformerConfig \(did you mean 'num_heads'"
    ):
        make().replace(num_head=2)


def test_every_preset_is_a_config_and_says_where_it_is_from():
    names = preset_names()
    for wanted in (
        "transformer-base",
        "bert-base",
        "gpt2",
        "llama-3-8b",
        "qwen2.5-7b",
        "tiny",
        "small-decoder",
    ):
        assert wanted in names
    for name in names:
        assert isinstance(load_preset(name), TransformerConfig)
        assert preset_source(name)


def test_the_original_transformer():
    config = load_preset("transformer-base")
    assert (config.dim, config.num_heads, config.ffn_dim) == (512, 8, 2048)
    assert (config.num_encoder_layers, config.num_layers) == (6, 6)
    assert (config.position, config.norm_position, config.head_dim) == ("sinusoidal", "post", 64)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(UsageError, match=r"no preset 'gpt-2' \(did you mean 'gpt2'\?\)"):
        load_preset("gpt-2")


def test_configs_and_presets_load_no_torch():
    code = (
        "import sys, attnbench.model.presets as p; p.load_preset('gpt2'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
