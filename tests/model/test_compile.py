"""Models go through ``torch.compile``; what comes out is what eager mode gives."""

import pytest
import torch

from attnbench.model.builder import build_model
from attnbench.model.text import stdlib_tokens

WINDOW = {"name": "sliding-window", "window_size": 3}


@pytest.mark.parametrize(
    ("implementation", "mask"),
    [
        ("naive", "causal"),
        pytest.param("sdpa", "causal", marks=pytest.mark.long),
        pytest.param("linear", "causal", marks=pytest.mark.long),
        pytest.param("sliding-window", WINDOW, marks=pytest.mark.long),
    ],
)
# Dynamo's own, of the autograd functions that it traces.
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@torch.no_grad()
def test_a_compiled_model_is_the_model(implementation, mask):
    torch.compiler.reset()
    model = build_model("tiny", implementation, mask=mask, num_layers=1)
    compiled = torch.compile(model, backend="aot_eager")
    tokens = stdlib_tokens(2, 7)
    assert torch.equal(compiled(tokens, [7, 4]), model(tokens, [7, 4]))
