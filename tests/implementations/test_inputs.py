"""Tensors that are not those of the problem are refused by whoever reads memory by itself."""

import pytest
import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.contract.problem import Problem

SHAPE = (2, 4, 16, 8)
KV_SHAPE = (2, 2, 16, 8)


@pytest.mark.parametrize("name", ["triton-flash", "sliding-window", "linear", "flex"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": torch.zeros(4, 16, 8)}, r"q is \[4, 16, 8\], the problem's is \[2, 4, 16, 8\]"),
        ({"k": torch.zeros(2, 4, 16, 8)}, r"k is \[2, 4, 16, 8\], the problem's is \[2, 2, 16, 8\]"),
        ({"v": torch.zeros(2, 2, 15, 8)}, r"v is \[2, 2, 15, 8\], the problem's is \[2, 2, 16, 8\]"),
        ({"k": torch.zeros(KV_SHAPE).half()}, "k is float16, the problem's is float32"),
        ({"q": torch.zeros(SHAPE).int()}, "q is int32, the problem's is float32"),
        ({"v": torch.zeros(KV_SHAPE, device="meta")}, "v is on meta, q on cpu; one device is accepted"),
        ({"v": torch.zeros(KV_SHAPE).to_sparse()}, r"v has the layout torch.sparse_coo, and torch.strided"),
    ],
    ids=["rank", "heads", "length", "dtype", "integers", "device", "layout"],
)
def test_the_argument_is_named(name: str, changed: dict[str, torch.Tensor], message: str) -> None:
    mask = SlidingWindow(4) if name == "sliding-window" else Causal()
    problem = Problem(batch=2, num_heads=4, num_kv_heads=2, seqlen_q=16, head_dim=8, mask=mask)
    inputs = {"q": torch.zeros(SHAPE), "k": torch.zeros(KV_SHAPE), "v": torch.zeros(KV_SHAPE), **changed}
    with pytest.raises(ValueError, match=message):
        get_implementation(name).attention(inputs["q"], inputs["k"], inputs["v"], problem=problem)


def test_a_chunk_for_a_state_is_checked_too() -> None:
    linear = get_implementation("linear")
    assert linear.new_state is not None
    assert linear.extend is not None
    problem = Problem(
        batch=2, num_heads=4, num_kv_heads=2, seqlen_q=1, seqlen_k=16, head_dim=8, mode="decode"
    )
    state = linear.new_state(problem, 16)
    q, k = torch.zeros(2, 4, 1, 8), torch.zeros(2, 2, 1, 8)
    with pytest.raises(ValueError, match="v is float64, the problem's is float32"):
        linear.extend(state, q, k, k.double(), problem=problem)
