"""Faults that public bug reports describe in models, one test each with the right value."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.contract.discovery import find_implementations
from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Full
from attnbench.contract.problem import Problem
from attnbench.model.builder import build_model
from attnbench.model.positions import rotary_table, sinusoidal_table
from tests.implementations.conformance import uncompiled

ENCODERS = [
    name
    for name, implementation in uncompiled().items()
    if not refusals(implementation, Problem(seqlen_q=6, head_dim=8, mask=Full(), key_lengths=(4,)))
]
CASTS: dict[str, Callable[..., nn.Module]] = {
    "to bfloat16": lambda **form: build_model(**form).to(torch.bfloat16),
    "half": lambda **form: build_model(**form).half(),
    "made in bfloat16": lambda **form: build_model(dtype="bfloat16", **form),
    "made in float16": lambda **form: build_model(dtype="float16", **form),
    "to float64": lambda **form: build_model(**form).to(torch.float64),
    "there and back": lambda **form: build_model(**form).half().float(),
}


def phases(num_positions: int) -> Tensor:
    """The phases of a head of 32 in float64, ``[num_positions, 16]``."""
    speeds = torch.tensor([10000 ** (-2 * i / 32) for i in range(16)], dtype=torch.float64)
    return torch.outer(torch.arange(num_positions, dtype=torch.float64), speeds)


@pytest.mark.parametrize("cast", CASTS)
def test_a21_casting_a_model_leaves_its_rotary_positions_exact(cast: str) -> None:
    """EleutherAI/gpt-neox#1003.

    Phases built in 16 bits are off by whole radians at long positions, and positions collide: from 257 on in
    bfloat16, from 2049 on in float16. A cast of the module must not cast its frequencies.
    """
    model: Any = CASTS[cast](
        preset_or_config="tiny", implementation="sdpa", head_dim=32, num_layers=1, position="rope"
    )
    dtype = next(model.parameters()).dtype
    mixer = model.decoder.layers[0].mixer
    table = mixer.table.rows((0,), 4096, like=torch.zeros(1, dtype=dtype)).double()
    exact = phases(4096)
    bound = 1e-15 if dtype == torch.float64 else 2**-24
    assert (table[:, :16] - exact.cos()).abs().max() <= bound
    assert (table[:, 16:] - exact.sin()).abs().max() <= bound
    assert len(table.unique(dim=0)) == 4096
    assert not list(model.buffers())


def test_a21_phase_of_position_1857() -> None:
    """The second pair of a head of 32 stands at 1044.2678 rad there; in float16 at 1045."""
    table = rotary_table(2048, 32, 10000.0)
    assert table[1857, 1].item() == pytest.approx(math.cos(1044.2678), abs=1e-4)
    assert table[1857, 17].item() == pytest.approx(math.sin(1044.2678), abs=1e-4)
    assert abs(table[1857, 1].item() - math.cos(1045)) > 0.1


@pytest.mark.parametrize("cast", CASTS)
def test_a21_casting_a_model_leaves_its_sinusoids_exact(cast: str) -> None:
    """The same fault in the other kind of table."""
    model: Any = CASTS[cast](preset_or_config="tiny-translator", implementation="sdpa", num_layers=1)
    dtype = next(model.parameters()).dtype
    rows = model.source_embeddings.sinusoids.rows((0,), 4096, like=torch.zeros(1, dtype=dtype)).double()
    bound = 1e-15 if dtype == torch.float64 else 2**-24
    assert (rows - sinusoidal_table(4096, 32)).abs().max() <= bound
    assert not list(model.buffers())


PADDED = {
    "last two columns of every row": [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0]],
    "one row throughout": [[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]],
    "every row throughout": [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
}
TOKENS = torch.arange(18).view(3, 6)


def precision(name: str) -> tuple[str, float]:
    """The best dtype of an implementation and how near two of its computations must be."""
    wide = "dtype:float64" in find_implementations()[name].supports
    return ("float64", 1e-12) if wide else ("float32", 1e-5)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("padding", PADDED)
def test_a25_padding_is_the_same_in_training_and_evaluation(padding: str, name: str) -> None:
    """pytorch/pytorch#97111 and #178677.

    An inference path of its own gave another shape, other values, or an exception on padded batches. Here
    shapes stay, valid positions are those of each row by itself, and padding is finite.
    """
    mask = torch.tensor(PADDED[padding], dtype=torch.bool)
    dtype, tolerance = precision(name)
    recorded = "backward" in find_implementations()[name].supports
    model = build_model("tiny-bert", name, dim=16, num_heads=2, dtype=dtype)
    with torch.set_grad_enabled(recorded):
        trained = model.train().features(TOKENS, mask)
    with torch.no_grad():
        evaluated = model.eval().features(TOKENS, mask)
    assert trained.shape == evaluated.shape == (3, 6, 16)
    assert trained.isfinite().all()
    torch.testing.assert_close(trained.detach(), evaluated, rtol=0, atol=tolerance)
    with torch.no_grad():
        for row, count in enumerate(mask.sum(dim=1).tolist()):
            if count:
                alone = model.features(TOKENS[row : row + 1, :count])[0]
                torch.testing.assert_close(evaluated[row, :count], alone, rtol=0, atol=tolerance)
    if recorded:
        trained[mask].square().sum().backward()
        gradients = [weight.grad for weight in model.encoder.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("padding", PADDED)
def test_a25_padding_of_a_source_is_the_same_in_training_and_evaluation(padding: str) -> None:
    """The same through cross-attention, which may find no key at all."""
    mask = torch.tensor(PADDED[padding], dtype=torch.bool)
    model = build_model("tiny-translator", "sdpa", dim=16, num_heads=2, dtype="float64")
    trained = model.train()(TOKENS, TOKENS[:, :5], source_lengths=mask)
    with torch.no_grad():
        evaluated = model.eval()(TOKENS, TOKENS[:, :5], source_lengths=mask)
        other = model(TOKENS.where(mask, 255), TOKENS[:, :5], source_lengths=mask)
    assert trained.shape == (3, 5, 256)
    assert trained.isfinite().all()
    torch.testing.assert_close(trained.detach(), evaluated, rtol=0, atol=1e-12)
    assert torch.equal(other, evaluated)


@pytest.mark.parametrize("dim", [1, 5])
def test_a27_sinusoids_of_odd_width(dim: int) -> None:
    """codertimo/BERT-pytorch#78.

    An odd width has one more sine column than cosine columns: sin, cos, sin, cos, sin, at 10000^(-2i/d).
    """
    table = sinusoidal_table(4, dim)
    assert table.shape == (4, dim)
    assert table[0].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0][:dim]
    for p in range(4):
        angles = [p * 10000 ** (-2 * i / dim) for i in range(3)]
        wanted = [f(angle) for angle in angles for f in (math.sin, math.cos)][:dim]
        assert table[p].tolist() == pytest.approx(wanted, abs=1e-15)


@pytest.mark.parametrize("preset", ["tiny-gpt2", "tiny-bert", "tiny-translator"])
@pytest.mark.parametrize("dim", [1, 5])
def test_a27_models_of_odd_width(dim: int, preset: str) -> None:
    """The table reaches the first layer of every architecture as it is."""
    form: dict[str, Any] = {"dim": dim, "num_heads": 1, "position": "sinusoidal", "embedding_norm": False}
    model: Any = build_model(preset, dtype="float64", **form)
    tokens = torch.tensor([[7, 7, 7, 7]])
    embeddings = model.source_embeddings if preset == "tiny-translator" else model.embeddings
    embedded = embeddings(tokens, (0,), 4)[0]
    moved = embedded - embedded[:1] + torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)[:dim]
    torch.testing.assert_close(moved, sinusoidal_table(4, dim), rtol=0, atol=1e-14)
    out = model(tokens, tokens) if preset == "tiny-translator" else model(tokens)
    assert out.shape == (1, 4, 256)
    assert out.isfinite().all()
