"""``attend``: the one call for people, and what it refuses."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import attnbench
from attnbench.contract.errors import UsageError

Q = torch.randn(2, 4, 6, 16, generator=torch.Generator().manual_seed(0))
K = torch.randn(2, 2, 9, 16, generator=torch.Generator().manual_seed(1))
V = torch.randn(2, 2, 9, 24, generator=torch.Generator().manual_seed(2))


def test_it_is_the_formula() -> None:
    out, lse = attnbench.attend(Q, K, V, mask=attnbench.Full())
    keys, values = K.repeat_interleave(2, dim=1), V.repeat_interleave(2, dim=1)
    logits = Q.double() @ keys.double().transpose(-1, -2) / 4
    torch.testing.assert_close(out.double(), logits.softmax(-1) @ values.double(), rtol=1e-5, atol=1e-6)
    assert lse is not None
    torch.testing.assert_close(lse.double(), logits.logsumexp(-1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["sdpa", "triton-flash", "sliding-window"])
def test_every_softmax_implementation_gives_the_same(name: str) -> None:
    mask = attnbench.SlidingWindow(100) if name == "sliding-window" else attnbench.Causal()
    arguments: dict[str, Any] = {"key_lengths": [9, 4], "query_start": [3, 0], "scale": 0.4, "mask": mask}
    expected = attnbench.attend(Q, K, V, **arguments)
    actual = attnbench.attend(Q, K, V, implementation=name, **arguments)
    torch.testing.assert_close(actual.out, expected.out, rtol=1e-5, atol=2e-6)


def test_gradients_flow() -> None:
    q = Q.clone().requires_grad_()
    attnbench.attend(q, K, V).out.sum().backward()
    assert q.grad is not None
    assert float(q.grad.abs().sum()) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Q[0], K, V), r"q must be \[batch, heads, seqlen, head_dim\], not \[4, 6, 16\]"),
        ((Q, K[:1], V), "q, k and v have batch sizes 2, 1 and 2"),
        ((Q, K, V[:, :, :5]), "differ in heads or length"),
        ((Q, K[..., :8], V), "q has head_dim 16, k has 8"),
        (
            (Q, K.half(), V),
            "one dtype and one device, not q float32 on cpu, k float16 on cpu, v float32 on cpu",
        ),
        ((Q.numpy(), K, V), "q must be a torch.Tensor .*, not numpy.ndarray; torch.as_tensor makes one"),
        ((Q[:, :3], K, V), "num_heads=3 is not divisible by num_kv_heads=2"),
    ],
)
def test_shapes_that_do_not_fit(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attnbench.attend(*arguments)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"implementation": "naiv"}, "unknown implementation 'naiv' .did you mean 'naive'"),
        ({"mask": "causl"}, "unknown mask 'causl'"),
        ({"scale": float("inf")}, "scale must be finite"),
        ({"scale": "half"}, "scale must be a finite number, not 'half'"),
        ({"mask": torch.ones(6, 9, dtype=torch.bool)}, "a mask is a Mask, a name, or a table .*, not Tensor"),
        ({"implementation": print}, "implementation must be a name"),
        ({"key_lengths": 4}, "key_lengths must be a sequence of whole numbers, one per batch row, not 4"),
        ({"key_lengths": [4.0, 2.0]}, "key_lengths must be a whole number, not 4.0"),
        ({"query_start": 1.5}, "query_start must be a whole number, not 1.5"),
        (
            {"implementation": "sliding-window"},
            "mask:causal; of masks it supports sliding-window: "
            "pass mask={'name': 'sliding-window', 'window_size': …}",
        ),
        ({"key_lengths": (10, 1)}, "within 0 and seqlen_k=9"),
        ({"implementation": "linear", "scale": 1.0}, "linear does not support scale"),
        ({"options": {"chunk_size": 4}}, "naive has no option 'chunk_size'"),
    ],
)
def test_requests_that_cannot_be_met(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attnbench.attend(Q, K, V, **keywords)


def test_a_core_without_a_backward_pass_says_so() -> None:
    naive = attnbench.get_implementation("naive")
    forward_alone = dataclasses.replace(naive, supports=naive.supports - {"backward"})
    with pytest.raises(UsageError, match="naive does not support backward"):
        attnbench.attend(Q.clone().requires_grad_(), K, V, implementation=forward_alone)
    with torch.no_grad():
        out = attnbench.attend(Q.clone().requires_grad_(), K, V, implementation=forward_alone).out
    assert out.shape == (2, 4, 6, 24)


def test_lengths_may_be_numpy_s_or_torch_s() -> None:
    expected = attnbench.attend(Q, K, V, key_lengths=[9, 4], query_start=[3, 0]).out
    makers: list[Any] = [np.array, torch.tensor]
    for one in makers:
        lengths, starts = one([9, 4]), one([3, 0])
        assert torch.equal(attnbench.attend(Q, K, V, key_lengths=lengths, query_start=starts).out, expected)
