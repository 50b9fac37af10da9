"""``torch.nn``'s own Transformer and attention: equal outputs and gradients, on the same random weights."""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.model.convert import from_torch

DIM, HEADS, FFN = 24, 4, 40
SOURCE, TARGET = [11, 4, 7], [7, 2, 5]
GRADIENTS = (1e-8, 1e-4)
SOFTMAX = ("sdpa", "sdpa-math", "sdpa-flash", "triton-flash", "sliding-window")

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def kind(request):
    return request.param


def drawn(module, *, dtype, train=False):
    """Every weight drawn from one seed, of norms and biases too."""
    generator = torch.Generator().manual_seed(7)
    module = module.to(dtype).train(train)
    for name, parameter in module.named_parameters():
        norm = parameter.ndim == 1 and name.endswith("weight")
        nn.init.normal_(parameter, 1.0 if norm else 0.0, 0.2, generator=generator)
    return module


def numbers(*shape, dtype, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def padding(lengths):
    """True where there is nothing, as torch has it."""
    return torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]


def hidden(seqlen, mask=Causal()):  # noqa: B008  # a frozen dataclass
    """The attention mask of torch: True where nothing is seen."""
    positions = torch.arange(seqlen)
    return ~mask.visible(0, 0, positions[:, None], positions[None, :])


def transformer(dtype, *, train=False, **form):
    return drawn(nn.Transformer(DIM, HEADS, 2, 3, FFN, dropout=0.0, **form), dtype=dtype, train=train)


def run_torch(module, source, target):
    turn = (lambda x: x) if module.batch_first else (lambda x: x.transpose(0, 1))
    out = module(
        turn(source),
        turn(target),
        tgt_mask=hidden(target.shape[1]),
        src_key_padding_mask=padding(SOURCE),
        tgt_key_padding_mask=padding(TARGET),
        memory_key_padding_mask=padding(SOURCE),
    )
    return turn(out)


def check_gradients(agree, theirs, ours, their_inputs, our_inputs, **given):
    """Every input's gradient and every weight's.

    A copy of the module that holds gradients in place of weights is converted like the module itself, so that
    they stand by our names. A key's bias moves all scores of a row alike and has no gradient but rounding:
    the biases of q, k and v are one tensor in torch, and are compared as one.
    """
    for their_input, our_input in zip(their_inputs, our_inputs, strict=True):
        agree(our_input.grad, their_input.grad, GRADIENTS)
    gradients = deepcopy(theirs)
    for holder, parameter in zip(gradients.parameters(), theirs.parameters(), strict=True):
        holder.data = parameter.grad
    expected = dict(from_torch(gradients, **given).named_parameters())
    assert set(expected) == {name for name, _ in ours.named_parameters()}
    for name in expected:
        if name.endswith(("q_proj.bias", "v_proj.bias")):
            continue
        names = [name]
        if name.endswith("k_proj.bias"):
            names = [name.replace("k_proj", f"{letter}_proj") for letter in "qkv"]
        actual = torch.cat([ours.get_parameter(each).grad for each in names])
        agree(actual, torch.cat([expected[each].detach() for each in names]), GRADIENTS)


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("pre", [False, True], ids=["post", "pre"])
def test_transformer_forward_and_backward(agree, kind, pre, activation, train):
    theirs = transformer(kind, norm_first=pre, activation=activation, batch_first=True, train=train)
    ours = from_torch(theirs)
    assert ours.training == train
    inputs = [numbers(3, 11, DIM, dtype=kind), numbers(3, 7, DIM, dtype=kind, seed=2)]
    their_inputs, our_inputs = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    expected, actual = run_torch(theirs, *their_inputs), ours(*our_inputs, SOURCE, TARGET)
    valid = ~padding(TARGET)
    agree(actual[valid], expected[valid])
    weights = numbers(*expected[valid].shape, dtype=kind, seed=3)
    (expected[valid] * weights).sum().backward()
    (actual[valid] * weights).sum().backward()
    check_gradients(agree, theirs, ours, their_inputs, our_inputs)


@torch.no_grad()
@pytest.mark.parametrize("pre", [False, True], ids=["post", "pre"])
def test_without_gradients_torch_takes_its_fast_path_and_agrees(agree, kind, pre):
    theirs = transformer(kind, norm_first=pre, batch_first=True)
    source, target = numbers(3, 11, DIM, dtype=kind), numbers(3, 7, DIM, dtype=kind, seed=2)
    valid = ~padding(TARGET)
    actual = from_torch(theirs)(source, target, ~padding(SOURCE), valid)
    agree(actual[valid], run_torch(theirs, source, target)[valid])


@torch.no_grad()
@pytest.mark.parametrize("name", SOFTMAX)
def test_transformer_through_every_softmax_implementation(agree, name):
    theirs = transformer(torch.float32, batch_first=True)
    masks: dict[str, Any] = {"mask": SlidingWindow(16), "encoder_mask": SlidingWindow(16, causal=False)}
    ours = from_torch(theirs, name, **(masks if name == "sliding-window" else {}))
    assert ours.implementation == name
    source, target = numbers(3, 11, DIM, dtype=torch.float32), numbers(3, 7, DIM, dtype=torch.float32, seed=2)
    valid = ~padding(TARGET)
    agree(ours(source, target, SOURCE, TARGET)[valid], run_torch(theirs, source, target)[valid])


FORMS: dict[str, dict[str, Any]] = {
    "sequence-first": {"batch_first": False},
    "without-biases": {"bias": False, "norm_first": True},
    "another-epsilon": {"layer_norm_eps": 0.1},
    "silu": {"activation": F.silu},
    "gelu-tanh": {"activation": partial(F.gelu, approximate="tanh")},
}


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_transformer_of_other_forms(agree, form):
    theirs = transformer(torch.float64, **({"batch_first": True} | FORMS[form]))
    source, target = (numbers(3, n, DIM, dtype=torch.float64, seed=n) for n in (11, 7))
    valid = ~padding(TARGET)
    actual = from_torch(theirs)(source, target, SOURCE, TARGET)
    agree(actual[valid], run_torch(theirs, source, target)[valid])


@torch.no_grad()
def test_transformer_with_a_window_for_the_target(agree):
    theirs = transformer(torch.float64, batch_first=True)
    source, target = (numbers(3, n, DIM, dtype=torch.float64, seed=n) for n in (11, 7))
    mask = {"name": "sliding-window", "window_size": 3}
    actual = from_torch(theirs, "sdpa", mask=mask)(source, target)
    agree(actual, theirs(source, target, tgt_mask=hidden(7, SlidingWindow(3))))


@torch.no_grad()
@pytest.mark.parametrize("pre", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("final", ["none", "norm", "norm-without-weights"])
@pytest.mark.parametrize("bias", [False, True], ids=["without-biases", "biases"])
def test_encoder(agree, kind, bias, final, pre):
    norm = None if final == "none" else nn.LayerNorm(DIM, elementwise_affine=final == "norm")
    layer = nn.TransformerEncoderLayer(DIM, HEADS, FFN, 0.0, batch_first=True, norm_first=pre, bias=bias)
    theirs = drawn(nn.TransformerEncoder(layer, 2, norm), dtype=kind)
    ours = from_torch(theirs)
    assert ours.config.architecture == "encoder-only"
    source, valid = numbers(3, 11, DIM, dtype=kind), ~padding(SOURCE)
    expected = theirs(source, src_key_padding_mask=padding(SOURCE))
    agree(ours(source, SOURCE)[valid], expected[valid])


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), torch.relu, "gelu"],
    ids=["ReLU", "GELU", "GELU-tanh", "SiLU", "function", "name"],
)
def test_encoder_with_every_way_of_naming_an_activation(agree, activation):
    layer = nn.TransformerEncoderLayer(DIM, HEADS, FFN, 0.0, activation, batch_first=True)
    theirs = drawn(nn.TransformerEncoder(layer, 2), dtype=torch.float64)
    source = numbers(3, 11, DIM, dtype=torch.float64)
    # Recorded by autograd: in its fast path torch takes the exact gelu for that of tanh.
    agree(from_torch(theirs)(source), theirs(source))


@torch.no_grad()
def test_encoder_with_a_causal_mask(agree):
    layer = nn.TransformerEncoderLayer(DIM, HEADS, FFN, 0.0, batch_first=True)
    theirs = drawn(nn.TransformerEncoder(layer, 2), dtype=torch.float64)
    source = numbers(3, 11, DIM, dtype=torch.float64)
    agree(from_torch(theirs, encoder_mask="causal")(source), theirs(source, mask=hidden(11)))


@pytest.mark.parametrize("bias", [False, True], ids=["without-biases", "biases"])
@pytest.mark.parametrize(("kdim", "vdim"), [(10, 6), (10, DIM), (DIM, DIM)])
def test_attention_over_a_context_forward_and_backward(agree, kind, kdim, vdim, bias):
    theirs = drawn(
        nn.MultiheadAttention(DIM, HEADS, kdim=kdim, vdim=vdim, bias=bias, batch_first=True), dtype=kind
    )
    ours = from_torch(theirs, cross=True)
    inputs = [
        numbers(3, 5, DIM, dtype=kind),
        numbers(3, 11, kdim, dtype=kind),
        numbers(3, 11, vdim, dtype=kind),
    ]
    their_inputs, our_inputs = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    expected, _ = theirs(*their_inputs, key_padding_mask=padding(SOURCE))
    actual, state = ours(our_inputs[0], tuple(our_inputs[1:]), lengths=SOURCE)
    assert state is None
    agree(actual, expected)
    weights = numbers(*expected.shape, dtype=kind, seed=3)
    (expected * weights).sum().backward()
    (actual * weights).sum().backward()
    check_gradients(agree, theirs, ours, their_inputs, our_inputs, cross=True)


@torch.no_grad()
@pytest.mark.parametrize("name", ["naive", "sdpa", "triton-flash"])
def test_attention_within_one_sequence(agree, name):
    theirs = drawn(nn.MultiheadAttention(DIM, HEADS, batch_first=True), dtype=torch.float32)
    x = numbers(3, 11, DIM, dtype=torch.float32)
    expected, _ = theirs(x, x, x, attn_mask=hidden(11), key_padding_mask=padding(SOURCE))
    valid = ~padding(SOURCE)
    actual, _ = from_torch(theirs, name, mask=Causal())(x, lengths=SOURCE)
    agree(actual[valid], expected[valid])
    full, _ = theirs(x, x, x)
    agree(from_torch(theirs, name)(x)[0], full)


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


def test_the_module_keeps_its_weights():
    theirs = transformer(torch.float64, batch_first=True)
    before = {name: parameter.clone() for name, parameter in theirs.named_parameters()}
    ours = from_torch(theirs)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert all(torch.equal(parameter, before[name]) for name, parameter in theirs.named_parameters())
