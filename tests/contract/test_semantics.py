"""The float64 truth itself, against formulas written out by hand and against autograd."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.contract import evaluation, joining
from attnbench.contract.evaluation import baseline, definition, truth
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import LINEAR_ELU, SOFTMAX, Semantics
from attnbench.measure.inputs import make_inputs

BY_NAME = {"softmax": SOFTMAX, "linear": LINEAR_ELU}


def one_row(semantics: Semantics, q: Tensor, k: Tensor, v: Tensor, scale: float, keys: list[int]) -> Tensor:
    """The definition for a single query, key by key."""
    if semantics is SOFTMAX:
        logits = [float(q @ k[j]) * scale for j in keys]
        weights = [math.exp(logit - max(logits)) for logit in logits]
    else:
        phi = lambda x: torch.where(x > 0, x + 1, x.exp())  # noqa: E731  (the feature map, written out)
        weights = [float(phi(q) @ phi(k[j])) for j in keys]
    if not keys:
        return torch.zeros_like(v[0]) if len(v) else torch.zeros(0, dtype=q.dtype)
    return sum(w * v[j] for w, j in zip(weights, keys, strict=True)) / sum(weights)  # type: ignore[return-value]


@pytest.mark.parametrize("semantics", BY_NAME.values(), ids=BY_NAME)
@pytest.mark.parametrize(
    "shape",
    [
        {"seqlen_q": 5},
        {"seqlen_q": 2, "seqlen_k": 5},
        {"seqlen_q": 5, "seqlen_k": 2},
        {"seqlen_q": 4, "mask": SlidingWindow(2)},
        {"seqlen_q": 3, "seqlen_k": 9, "query_start": (1, 5), "key_lengths": (3, 8)},
        {"seqlen_q": 4, "num_kv_heads": 1, "head_dim_v": 3, "mask": Full()},
    ],
    ids=str,
)
def test_truth_is_the_formula(semantics: Semantics, shape: dict[str, Any]) -> None:
    problem = Problem(
        **{"batch": 2, "num_heads": 2, "head_dim": 4, "head_dim_v": 4, "dtype": "float64", **shape}
    )
    p = problem
    inputs = make_inputs(p, seed=3)
    result = truth(semantics, inputs["q"], inputs["k"], inputs["v"], problem=p)
    for b in range(p.batch):
        for h in range(p.num_heads):
            g = h // p.group_size
            for i in range(p.seqlen_q):
                seen = p.mask.row_intervals(p.query_starts[b] + i, p.key_limits[b])
                keys = [j for lo, hi in seen for j in range(lo, hi)]
                q, k, v = inputs["q"][b, h, i], inputs["k"][b, g], inputs["v"][b, g]
                torch.testing.assert_close(
                    result.out[b, h, i],
                    one_row(semantics, q, k, v, p.softmax_scale, keys),
                    rtol=1e-12,
                    atol=1e-13,
                )
                if result.lse is not None:
                    total = sum(math.exp(float(q @ k[j]) * p.softmax_scale) for j in keys)
                    expected = math.log(total) if keys else -math.inf
                    assert float(result.lse[b, h, i]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("semantics", BY_NAME.values(), ids=BY_NAME)
@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(9)], ids=lambda mask: mask.slug)
def test_row_blocks_and_rows_give_the_gradients_of_the_whole(
    semantics: Semantics, mask: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("attnbench.contract.evaluation.BLOCK_BYTES", 8 * 2 * 4 * 40 * 7)  # seven rows a block
    problem = Problem(
        seqlen_q=33, seqlen_k=40, batch=2, num_heads=4, num_kv_heads=2, head_dim=8, dtype="float64",
        mask=mask, mode="fwd_bwd", key_lengths=(40, 21),
    )  # fmt: skip
    inputs = make_inputs(problem, seed=1)
    q, k, v = (inputs[name].requires_grad_() for name in ("q", "k", "v"))
    whole = definition(semantics, q, k, v, problem=problem)
    expected = torch.autograd.grad(whole.out, (q, k, v), inputs["grad_out"])
    blocks = truth(semantics, q, k, v, problem=problem, grad_out=inputs["grad_out"])
    torch.testing.assert_close(blocks.out, whole.out.detach(), rtol=1e-12, atol=1e-13)
    for actual, wanted in zip((blocks.dq, blocks.dk, blocks.dv), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-11, atol=1e-12)
    rows = torch.tensor([0, 5, 32])
    sampled = torch.zeros_like(inputs["grad_out"])
    sampled[:, :, rows] = inputs["grad_out"][:, :, rows]
    wanted_rows = truth(semantics, q, k, v, problem=problem, grad_out=sampled)
    actual_rows = truth(semantics, q, k, v, problem=problem, grad_out=sampled, rows=rows)
    torch.testing.assert_close(actual_rows.out, wanted_rows.out[:, :, rows], rtol=1e-12, atol=1e-13)
    keys = torch.ones(40, dtype=torch.bool) if actual_rows.keys is None else actual_rows.keys
    held = {"dq": torch.isin(torch.arange(33), rows), "dk": keys, "dv": keys}
    for name, kept in held.items():
        found, wanted = getattr(actual_rows, name), getattr(wanted_rows, name)
        torch.testing.assert_close(found, wanted[:, :, kept], rtol=1e-11, atol=1e-12)
        assert wanted[:, :, ~kept].count_nonzero() == 0
    assert (actual_rows.keys is None) == (mask == Causal())


@pytest.mark.parametrize("semantics", BY_NAME.values(), ids=BY_NAME)
@pytest.mark.parametrize(
    "form", [{}, {"mask": Full()}, {"query_start": -5}, {"key_lengths": (0, 31)}], ids=str
)
def test_rows_joined_from_parts_of_their_keys_are_those_of_the_whole(
    semantics: Semantics, form: dict[str, Any], monkeypatch: Any
) -> None:
    problem = Problem(
        **{"seqlen_q": 24, "seqlen_k": 31, "batch": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8,
           "dtype": "float64", "mode": "fwd_bwd", **form},
    )  # fmt: skip
    q, k, v, grad_out = make_inputs(problem, seed=2).values()
    rows = torch.tensor([0, 7, 8, 23])
    exact, plain = (
        function(semantics, q, k, v, problem=problem, grad_out=grad_out, rows=rows)
        for function in (truth, baseline)
    )
    parts: list[int] = []
    joined = joining.attend_in_parts

    def counted(attend: Any, pieces: Any, upstream: Any) -> Any:
        parts.append(len(pieces))
        return joined(attend, pieces, upstream)

    monkeypatch.setattr(evaluation, "attend_in_parts", counted)
    monkeypatch.setattr(evaluation, "PART_BYTES", 8 * 2 * 2 * 8 * 9)  # nine keys a part
    for whole, function in ((exact, truth), (plain, baseline)):
        found = function(semantics, q, k, v, problem=problem, grad_out=grad_out, rows=rows)
        for one, other in zip(found, whole, strict=True):
            assert (one is None) == (other is None)
            if one is not None and one.dtype != torch.bool:
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert max(parts) >= 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("semantics", BY_NAME.values(), ids=BY_NAME)
def test_the_baseline_joined_from_parts_errs_as_much(
    semantics: Semantics, dtype: str, monkeypatch: Any
) -> None:
    problem = Problem(seqlen_q=256, num_heads=2, head_dim=32, dtype=dtype, mode="fwd_bwd")
    q, k, v, grad_out = make_inputs(problem, seed=3).values()
    arguments: dict[str, Any] = {"problem": problem, "grad_out": grad_out, "rows": torch.arange(200, 256)}
    exact, whole = (function(semantics, q, k, v, **arguments) for function in (truth, baseline))
    monkeypatch.setattr(evaluation, "PART_BYTES", 8 * 2 * 32 * 64)  # sixty-four keys a part
    in_parts = baseline(semantics, q, k, v, **arguments)
    for name in ("out", "dq", "dk", "dv"):
        truths, usual, joined = (getattr(x, name).double() for x in (exact, whole, in_parts))
        norms = [float(torch.linalg.vector_norm(x - truths)) for x in (joined, usual)]
        assert 0.5 < norms[0] / norms[1] < 2


def test_a_constant_on_all_logits_changes_nothing() -> None:
    # Valid logits below every finite sentinel: 1 / (1 + e^-1), and an lse far below -5e4.
    problem = Problem(
        seqlen_q=1, seqlen_k=2, num_heads=1, head_dim=1, head_dim_v=1, scale=1.0, mask=Full(), dtype="float32"
    )
    q, k = torch.tensor([[[[-1.0]]]]), torch.tensor([[[[60000.0], [60001.0]]]])
    v = torch.tensor([[[[1.0], [0.0]]]])
    for result in (truth(SOFTMAX, q, k, v, problem=problem), baseline(SOFTMAX, q, k, v, problem=problem)):
        assert float(result.out) == pytest.approx(1 / (1 + math.exp(-1)), abs=1e-6)
        assert result.lse is not None
        assert float(result.lse) == pytest.approx(-60000 + math.log1p(math.exp(-1)), abs=5e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_baseline_rounds_where_it_stores(dtype: str) -> None:
    problem = Problem(seqlen_q=64, num_heads=2, head_dim=32, dtype=dtype)
    inputs = make_inputs(problem, seed=0)
    arguments = (SOFTMAX, inputs["q"], inputs["k"], inputs["v"])
    plain, exact = baseline(*arguments, problem=problem), truth(*arguments, problem=problem)
    error = float((plain.out.double() - exact.out).abs().max())
    assert plain.out.dtype == getattr(torch, dtype)
    assert 0 < error < 20 * torch.finfo(getattr(torch, dtype)).eps
