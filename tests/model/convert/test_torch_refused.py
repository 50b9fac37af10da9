"""Modules of ``torch.nn`` that have no counterpart here are refused, with the part that is in the way."""

import pytest
import torch
from torch import nn

from attnbench.contract.errors import UsageError
from attnbench.model.convert import from_torch

DIM, HEADS, FFN = 24, 4, 40

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but:UserWarning")


class Custom(nn.TransformerEncoderLayer):
    """Computes who knows what."""


def encoder(layer, **changes):
    module = nn.TransformerEncoder(layer, 2)
    for path, part in changes.items():
        parent, _, name = path.replace("__", ".").rpartition(".")
        setattr(module.get_submodule(parent), name, part)
    return module


def encoder_layer(**form):
    return nn.TransformerEncoderLayer(DIM, HEADS, FFN, 0.0, batch_first=True, **form)


def with_decoder_norm_gone():
    module = nn.Transformer(DIM, HEADS, 1, 1, FFN)
    module.decoder.norm = None
    return module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.Linear(3, 3),
            "Transformer, TransformerEncoder or MultiheadAttention is needed, not Linear",
        ),
        (lambda: nn.Transformer(DIM, HEADS, 1, 1, FFN, custom_decoder=nn.Linear(3, 3)), "decoder must be"),
        (
            lambda: encoder(Custom(DIM, HEADS)),
            r"encoder\.layers\.0 must be .*TransformerEncoderLayer, not Custom",
        ),
        (lambda: encoder(encoder_layer(), layers__1__linear1=nn.Identity()), r"layers\.1\.linear1 must be"),
        (
            lambda: encoder(encoder_layer(), layers__1=encoder_layer(norm_first=True)),
            "differ in norm_position",
        ),
        (
            lambda: encoder(encoder_layer(), layers__1=encoder_layer(activation="gelu")),
            "differ in activation",
        ),
        (lambda: encoder(encoder_layer(), layers__1=encoder_layer(bias=False)), "differ in qkv_bias"),
        (lambda: encoder(encoder_layer(), norm=nn.LayerNorm(DIM, eps=0.1)), "differ in norm_eps"),
        (
            lambda: encoder(encoder_layer(), norm=nn.RMSNorm(DIM)),
            r"encoder\.norm must be torch\.nn\.LayerNorm",
        ),
        (
            lambda: encoder(encoder_layer(activation=torch.tanh)),
            "activation of .* must be one of relu, gelu, silu",
        ),
        (
            lambda: encoder(encoder_layer(activation=lambda x: x)),
            "must be one of relu, gelu, silu, not <function",
        ),
        (with_decoder_norm_gone, r"differ in final_norm \(False, True\)"),
        (lambda: nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True), "add keys that stand at no position"),
        (lambda: nn.MultiheadAttention(DIM, HEADS, add_zero_attn=True), "add keys that stand at no position"),
        (lambda: encoder(encoder_layer(), layers__1=encoder_layer().half()), "one dtype on one device"),
        (lambda: None, "TransformerEncoder or MultiheadAttention is needed, not NoneType"),
        (nn.Identity, "one dtype on one device are needed, not none"),
    ],
)
def test_what_cannot_be_carried_over(make, message):
    with pytest.raises(UsageError, match=message):
        from_torch(make())


def test_keys_of_another_width_need_a_context():
    module = nn.MultiheadAttention(DIM, HEADS, kdim=10, vdim=6)
    with pytest.raises(UsageError, match="cross: keys of width 10 and values of width 6 come from a context"):
        from_torch(module, cross=False)
