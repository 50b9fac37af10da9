"""Rotary settings in the forms of all versions: outputs agree within and beyond the original length."""

import pytest
import torch

from attnbench.contract.errors import UsageError
from attnbench.model.convert import from_huggingface
from attnbench.model.convert.rotary import rotary_settings
from attnbench.model.convert.sources import Settings
from attnbench.model.rope import RopeScaling

ORIGINAL = {"original_max_position_embeddings": 8}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        **ORIGINAL,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, **ORIGINAL},
    "yarn-own": {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 3.0,
        "beta_slow": 0.25,
        "attention_factor": 1.5,
        "truncate": False,
        **ORIGINAL,
    },
    "yarn-mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.4, **ORIGINAL},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": [1.0, 1.25, 1.5, 2.0, 3.0],
        "long_factor": [1.5, 2.0, 4.0, 8.0, 16.0],
        **ORIGINAL,
    },
}


@torch.no_grad()
@pytest.mark.parametrize("seqlen", [6, 12], ids=["within", "beyond"])
@pytest.mark.parametrize("kind", SCALINGS)
def test_outputs_with_every_scaling(zoo, dtype, tokens, agree, kind, seqlen):
    longest = 8 if kind == "dynamic" else 32
    fields = {"head_dim": 10, "num_key_value_heads": 2, "max_position_embeddings": longest}
    scaled = zoo("LlamaForCausalLM", rope_parameters={"rope_theta": 500.0, **SCALINGS[kind]}, **fields)
    plain = zoo("LlamaForCausalLM", rope_parameters={"rope_type": "default", "rope_theta": 500.0}, **fields)
    tokens = tokens[:, :seqlen]
    expected = scaled(tokens).logits
    # Theirs follow the sequence at hand, ours the length that the model is made for.
    agree(from_huggingface(scaled, max_seqlen=seqlen)(tokens), expected)
    if seqlen <= 8:
        agree(from_huggingface(scaled)(tokens), expected)
    changes = kind != "dynamic" or seqlen > longest
    assert ((expected - plain(tokens).logits).abs().max() > 1e-3) == changes


def settings(**fields):
    return Settings({"max_position_embeddings": 4096, **fields}, "here")


def test_old_and_new_forms_mean_the_same():
    scaling = {"factor": 4.0, "original_max_position_embeddings": 1024}
    new = settings(rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **scaling})
    middle = settings(rope_theta=1e6, rope_scaling={"rope_type": "yarn", **scaling})
    old = settings(rope_theta=1e6, rope_scaling={"type": "yarn", **scaling})
    expected = (1e6, RopeScaling(kind="yarn", factor=4.0, original_max_seqlen=1024))
    assert [rotary_settings(form) for form in (new, middle, old)] == [expected] * 3


def test_what_is_absent_is_at_its_default():
    assert rotary_settings(settings()) == (10000.0, None)
    assert rotary_settings(settings(rope_scaling=None, rope_theta=5e5)) == (5e5, None)
    assert rotary_settings(settings(rope_parameters={"rope_type": "default", "rope_theta": 20.0})) == (
        20.0,
        None,
    )


def test_the_original_length_stands_beside_the_table_or_is_the_longest():
    table = {"rope_type": "yarn", "factor": None}
    beside = settings(rope_parameters=table, original_max_position_embeddings=512)
    assert rotary_settings(beside)[1] == RopeScaling(kind="yarn", factor=8.0, original_max_seqlen=512)
    assert rotary_settings(settings(rope_parameters=table))[1].original_max_seqlen == 4096


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rope_type": "yarm", "factor": 2.0}, "'yarm' is none of default, linear.*did you mean 'yarn'"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_quick": 3}, "'beta_quick' is no parameter of 'yarn'"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"sliding_attention": {"rope_type": "default"}}, "one table for all layers"),
        ({"rope_type": "linear", "factor": 0.5}, "factor must be a number of at least 1"),
        ({"rope_type": "linear", "factor": "two"}, "factor must be a positive number, not 'two'"),
        ({"rope_type": "default", "rope_theta": "big"}, "rope_theta must be a positive number, not 'big'"),
        ({"rope_type": ["yarn"], "factor": 2.0}, r"rope_type \['yarn'\] is none of default"),
        (
            {"rope_type": "yarn", "original_max_position_embeddings": "512"},
            "original_max_position_embeddings must be a positive number, not '512'",
        ),
    ],
)
def test_what_cannot_be_carried_over(table, message):
    with pytest.raises(UsageError, match=message):
        rotary_settings(settings(rope_parameters=table))
