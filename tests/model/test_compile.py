"""Models go through ``torch.compile``; what comes out, gradients included, is what eager mode gives."""

import pytest
import torch

from attnbench.model.builder import build_model
from attnbench.model.text import stdlib_tokens

WINDOW = {"name": "sliding-window", "window_size": 3}


@pytest.mark.parametrize(
    ("implementation", "mask"),
    [
        ("naive", "causal"),
        ("sliding-window", WINDOW),
        pytest.param("sdpa", "causal", marks=pytest.mark.long),
        pytest.param("linear", "causal", marks=pytest.mark.long),
        pytest.param("triton-flash", "causal", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("lengths", [pytest.param(None, marks=pytest.mark.long), [7, 4]], ids=str)
# Dynamo's own, of the autograd functions that it traces.
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
def test_a_compiled_model_is_the_model(implementation, mask, lengths):
    """In one graph: ``fullgraph`` raises at any break."""
    torch.compiler.reset()
    model = build_model("tiny", implementation, mask=mask, num_layers=1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    tokens, weights = stdlib_tokens(2, 7), list(model.parameters())
    with torch.no_grad():
        assert torch.equal(compiled(tokens, lengths), model(tokens, lengths))
    found, expected = (
        torch.autograd.grad(run(tokens, lengths).square().mean(), weights) for run in (compiled, model)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("implementation", "mask"),
    [("linear", "causal"), pytest.param("sliding-window", WINDOW, marks=pytest.mark.long)],
)
@torch.no_grad()
def test_each_length_has_its_graph(implementation, mask):
    """A number that changes between calls is a symbol for the compiler; problems are of plain numbers."""
    torch.compiler.reset()
    model = build_model("tiny", implementation, mask=mask, num_layers=1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for batch, seqlen in ((1, 5), (1, 8), (1, 9), (2, 9), (3, 6)):
        tokens = stdlib_tokens(batch, seqlen)
        assert torch.equal(compiled(tokens), model(tokens)), (batch, seqlen)
