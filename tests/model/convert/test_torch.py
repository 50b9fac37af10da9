"""``torch.nn``'s own Transformer and attention: equal outputs and gradients, on the same random weights."""

from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnbench.contract.discovery import find_implementations
from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.model.convert import from_torch

DIM, HEADS, FFN = 24, 4, 40
SOURCE, TARGET = [11, 4, 7], [7, 2, 5]
GRADIENTS = (1e-8, 1e-4)
WINDOW = 16  # wider than any sequence here: nothing is beyond it

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


def run_padded(model, source, target):
    return model(source, target, SOURCE, TARGET)


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


def compare(agree, theirs, run_theirs, ours, run_ours, inputs, valid, *, backward=True, **given):
    """Outputs where there is something, and then the gradients."""
    their_inputs, our_inputs = ([x.clone().requires_grad_(backward) for x in inputs] for _ in range(2))
    with torch.set_grad_enabled(backward):
        expected, actual = run_theirs(*their_inputs)[valid], run_ours(*our_inputs)[valid]
    agree(actual, expected)
    if backward:
        weights = numbers(*expected.shape, dtype=expected.dtype, seed=3)
        (expected * weights).sum().backward()
        (actual * weights).sum().backward()
        check_gradients(agree, theirs, ours, their_inputs, our_inputs, **given)


def embeddings(dtype):
    """A source and a target."""
    return [numbers(3, 11, DIM, dtype=dtype), numbers(3, 7, DIM, dtype=dtype, seed=2)]


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("pre", [False, True], ids=["post", "pre"])
def test_transformer_forward_and_backward(agree, kind, pre, activation, train):
    theirs = transformer(kind, norm_first=pre, activation=activation, batch_first=True, train=train)
    ours = from_torch(theirs)
    assert ours.training == train
    run_theirs, run_ours = partial(run_torch, theirs), partial(run_padded, ours)
    compare(agree, theirs, run_theirs, ours, run_ours, embeddings(kind), ~padding(TARGET))


@torch.no_grad()
@pytest.mark.parametrize("pre", [False, True], ids=["post", "pre"])
def test_without_gradients_torch_takes_its_fast_path_and_agrees(agree, kind, pre):
    theirs = transformer(kind, norm_first=pre, batch_first=True)
    source, target = numbers(3, 11, DIM, dtype=kind), numbers(3, 7, DIM, dtype=kind, seed=2)
    valid = ~padding(TARGET)
    actual = from_torch(theirs)(source, target, ~padding(SOURCE), valid)
    agree(actual[valid], run_torch(theirs, source, target)[valid])


class Softmax(NamedTuple):
    """An implementation that is to be torch's function, the masks it takes, whether gradients are asked."""

    name: str
    dtype: torch.dtype
    mask: Mask
    encoder_mask: Mask
    backward: bool


def softmax_implementations() -> list[Softmax]:
    """All that are found and can be given padded rows on a CPU.

    Where only windows are taken, such that nothing is beyond them; where kernels are interpreted, which takes
    its time, without gradients.
    """
    found = []
    pairs: list[tuple[Mask, Mask]] = [
        (Causal(), Full()),
        (SlidingWindow(WINDOW), SlidingWindow(WINDOW, causal=False)),
    ]
    for (name, core), dtype in product(find_implementations().items(), ("float32", "float64")):
        shape = Problem(
            batch=3,
            num_heads=HEADS,
            head_dim=DIM // HEADS,
            seqlen_q=11,
            key_lengths=tuple(SOURCE),
            dtype=dtype,
        )
        backward = core.execution(shape) != "interpreted"
        shape = shape.replace(mode="fwd_bwd" if backward else "fwd")
        taken = [pair for pair in pairs if not any(refusals(core, shape.replace(mask=mask)) for mask in pair)]
        if core.semantics == SOFTMAX and taken:
            found.append(Softmax(name, getattr(torch, dtype), *taken[0], backward))
    return found


def softmax_id(case):
    return f"{case.name}-{str(case.dtype).removeprefix('torch.')}"


every_softmax = pytest.mark.parametrize("case", softmax_implementations(), ids=softmax_id)


def test_softmax_implementations_are_found():
    cases = softmax_implementations()
    with_gradients = {(case.name, case.dtype) for case in cases if case.backward}
    names = {"naive", "sdpa", "sdpa-math", "sliding-window"}
    assert with_gradients >= set(product(names, (torch.float32, torch.float64)))
    assert {case.name for case in cases} >= names | {"sdpa-flash", "triton-flash"}


@pytest.mark.parametrize("pre", [False, True], ids=["post", "pre"])
@every_softmax
def test_transformer_through_every_softmax_implementation(agree, case, pre):
    theirs = transformer(case.dtype, norm_first=pre, batch_first=True)
    ours = from_torch(theirs, case.name, mask=case.mask, encoder_mask=case.encoder_mask)
    assert ours.implementation == case.name
    run_theirs, run_ours = partial(run_torch, theirs), partial(run_padded, ours)
    inputs, valid = embeddings(case.dtype), ~padding(TARGET)
    compare(agree, theirs, run_theirs, ours, run_ours, inputs, valid, backward=case.backward)


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
    compare(
        agree,
        theirs,
        lambda q, k, v: theirs(q, k, v, key_padding_mask=padding(SOURCE))[0],
        ours,
        lambda q, k, v: ours(q, (k, v), lengths=SOURCE)[0],
        inputs,
        slice(None),
        cross=True,
    )
    assert ours(inputs[0], tuple(inputs[1:]))[1] is None, "no state was asked for"


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@every_softmax
def test_attention_within_one_sequence_through_every_softmax_implementation(agree, case, causal):
    theirs = drawn(nn.MultiheadAttention(DIM, HEADS, batch_first=True), dtype=case.dtype)
    ours = from_torch(theirs, case.name, mask=case.mask if causal else case.encoder_mask)
    seen = {"attn_mask": hidden(11) if causal else None, "key_padding_mask": padding(SOURCE)}
    inputs, valid = [numbers(3, 11, DIM, dtype=case.dtype)], ~padding(SOURCE)
    compare(
        agree,
        theirs,
        lambda x: theirs(x, x, x, **seen)[0],
        ours,
        lambda x: ours(x, lengths=SOURCE)[0],
        inputs,
        valid,
        backward=case.backward,
    )


def test_the_module_keeps_its_weights():
    theirs = transformer(torch.float64, batch_first=True)
    before = {name: parameter.clone() for name, parameter in theirs.named_parameters()}
    ours = from_torch(theirs)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert all(torch.equal(parameter, before[name]) for name, parameter in theirs.named_parameters())
