"""The example of CONTRIBUTING.md works as printed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import attnbench
from attnbench.contract.evaluation import truth
from attnbench.contract.implementation import Implementation

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Implementation:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    place = tmp_path_factory.mktemp("mine") / "chunked.py"
    place.write_text(blocks[0])
    return attnbench.get_implementation(str(place))


@pytest.mark.parametrize("mask", [attnbench.Full(), attnbench.Causal(), attnbench.SlidingWindow(50)], ids=str)
@pytest.mark.parametrize("seqlen", [1, 63, 128, 200])
def test_example_agrees_with_the_definition(
    example: Implementation, seqlen: int, mask: attnbench.Full | attnbench.Causal | attnbench.SlidingWindow
) -> None:
    problem = attnbench.Problem(
        batch=2, num_heads=2, seqlen_q=seqlen, head_dim=16, dtype="float64", mask=mask
    )
    q, k, v = torch.randn(
        3, 2, 2, seqlen, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(42)
    )
    out = attnbench.attend(q, k, v, implementation=example, mask=mask).out
    assert (out - truth(example.semantics, q, k, v, problem=problem).out).abs().max() < 1e-14


def test_example_is_refused_what_it_does_not_list(example: Implementation) -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 16, requires_grad=True)
    with pytest.raises(ValueError, match="chunked does not support backward"):
        attnbench.attend(q, k, v, implementation=example)


def test_example_counts_its_cost(example: Implementation) -> None:
    cost = example.cost(attnbench.Problem(num_heads=2, seqlen_q=4, head_dim=8))
    assert cost.flops == 2 * 2 * (1 + 2 + 3 + 4) * (8 + 8)
    assert str(cost.leading_term("peak_bytes")) == "B*C*H*n"


def test_example_decodes_once_it_lists_what_that_needs(example: Implementation) -> None:
    listed = {"decode", "cross-lengths", "key-lengths", "query-start"}
    decoding = replace(example, supports=example.supports | listed)
    model = attnbench.build_model("tiny", decoding, num_kv_heads=4, dtype="float64")
    tokens = torch.arange(12).view(2, 6)
    with torch.no_grad():
        whole = model(tokens, [6, 4])
        state = model.new_state(2, 6)
        pieces = [model(tokens[:, :5], [5, 3], state=state), model(tokens[[0, 1], [5, 3], None], state=state)]
    torch.testing.assert_close(pieces[1][:, 0], whole[[0, 1], [5, 3]], rtol=0, atol=1e-12)
