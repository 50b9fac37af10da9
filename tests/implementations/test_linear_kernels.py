"""The kernels of linear attention, interpreted: numbers, exact properties, decoding, operators."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnbench.contract import state as states
from attnbench.contract.evaluation import truth
from attnbench.contract.masks import Causal, Full
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import LINEAR_ELU
from attnbench.implementations._linear import step as registered  # noqa: F401  registers attnbench::linear_step
from attnbench.implementations._linear.forward import linear_forward
from attnbench.implementations._linear.tiles import LinearTile
from attnbench.measure.agreement import grade_outputs
from attnbench.measure.inputs import make_inputs
from tests.implementations.conformance import DEFAULTS, SHAPES, inputs_for, run, yardstick_for
from tests.implementations.linear_kernels import KERNELS, LINEAR, with_tile

SMALL = LinearTile(32, 16, 16, 1, 1)
"""Several blocks a chunk and several blocks of columns."""
ORDINARY = [
    ("n1", Causal(), "float32"),
    ("n129", Causal(), "float16"),
    ("grouped", Causal(), "float32"),
    ("short-k", Causal(), "float32"),
    ("ragged-starts", Causal(), "float32"),
    ("key-lengths", Causal(), "float16"),
    ("wide-values", Causal(), "float32"),
    ("width-80", Causal(), "float16"),
    ("key-lengths", Full(), "float32"),
    ("multi-query", Full(), "float16"),
    ("cache-start-alone", Full(), "float32"),
]
ALL = [
    (name, mask, ("float32", "float16")[(i + j + k) % 2], chunk_size)
    for i, name in enumerate(SHAPES)
    for j, mask in enumerate((Causal(), Full()))
    for k, chunk_size in enumerate((16, 64, 256))
    if name != "scale" and (name, chunk_size) != ("n1000", 16)
]
"""Types take turns along each of the others: every three of the four properties together."""


def verdict(problem: Problem) -> str | None:
    """What out and gradients are graded as; ``ok`` is within budget."""
    inputs = inputs_for(problem.replace(options={}))
    result, gradients = run(KERNELS, problem, inputs)
    yardstick = yardstick_for(LINEAR_ELU, problem)
    dtype, bounds = inputs["q"].dtype, yardstick.bounds
    return grade_outputs(
        result.out,
        None,
        gradients,
        yardstick.truth,
        yardstick.plain,
        dtype=dtype,
        bounds=bounds,
        lse_expected=False,
    ).verdict


@pytest.mark.parametrize(("name", "mask", "dtype"), ORDINARY)
def test_within_budget(name: str, mask: Any, dtype: str) -> None:
    shape = {**DEFAULTS, **SHAPES[name], "options": {"chunk_size": 64}}
    assert verdict(Problem(**shape, mask=mask, dtype=dtype, mode="fwd_bwd")) == "ok"


@pytest.mark.parametrize("mask", [Causal(), Full()], ids=lambda mask: mask.slug)
@pytest.mark.parametrize(
    ("seqlen", "head_dim", "head_dim_v"), [(1, 80, 16), (1, 8, 40), (2, 80, 16), (3, 24, 8)]
)
def test_gradients_that_cancel_are_within_budget(
    seqlen: int, head_dim: int, head_dim_v: int, mask: Any
) -> None:
    """Of a key seen alone dq and dk are differences of equal sums: what rounding takes from one is seen."""
    assert (
        verdict(
            Problem(
                seqlen_q=seqlen,
                num_heads=2,
                head_dim=head_dim,
                head_dim_v=head_dim_v,
                mask=mask,
                dtype="float16",
                mode="fwd_bwd",
                options={"chunk_size": 32},
            )
        )
        == "ok"
    )


@pytest.mark.long
@pytest.mark.parametrize(("name", "mask", "dtype", "chunk_size"), ALL)
def test_every_shape_within_budget(name: str, mask: Any, dtype: str, chunk_size: int) -> None:
    shape = {**DEFAULTS, **SHAPES[name], "options": {"chunk_size": chunk_size}}
    assert verdict(Problem(**shape, mask=mask, dtype=dtype, mode="fwd_bwd")) == "ok"


@st.composite
def problems(draw: st.DrawFn, longest: int) -> Problem:
    lengths = st.integers(0, longest)
    batch, seqlen_q, seqlen_k = draw(st.integers(1, 2)), draw(lengths), draw(lengths)
    more: dict[str, Any] = {
        "batch": batch,
        "num_kv_heads": draw(st.sampled_from([1, 2])),
        "head_dim": draw(st.sampled_from([8, 16, 24, 80])),
        "head_dim_v": draw(st.sampled_from([8, 16, 40])),
        "mask": draw(st.sampled_from([Causal(), Full()])),
        "dtype": draw(st.sampled_from(["float32", "float16"])),
        "options": {"chunk_size": draw(st.sampled_from([16, 32, 128]))},
    }
    if draw(st.booleans()):
        more["key_lengths"] = tuple(draw(st.integers(0, seqlen_k)) for _ in range(batch))
    if draw(st.booleans()):
        starts = st.integers(-longest // 2, longest + 30)
        more["query_start"] = tuple(draw(starts) for _ in range(batch))
    return Problem(seqlen_q=seqlen_q, seqlen_k=seqlen_k, num_heads=2, mode="fwd_bwd", **more)


@given(problems(longest=20))
@settings(max_examples=3, deadline=None)
def test_any_geometry_within_budget(problem: Problem) -> None:
    assert verdict(problem) == "ok"


@pytest.mark.long
@given(problems(longest=48))
@settings(max_examples=500, deadline=None)
def test_every_geometry_within_budget(problem: Problem) -> None:
    assert verdict(problem) == "ok"


def tensors(problem: Problem, *, gradients: bool = False) -> list[Tensor]:
    inputs = make_inputs(problem, seed=3)
    return [inputs[name].detach().requires_grad_(gradients) for name in ("q", "k", "v")]


def test_tiles_do_not_matter() -> None:
    backward = LinearTile(32, 32, 32, 1, 1)
    problem = Problem(seqlen_q=40, seqlen_k=60, num_heads=2, num_kv_heads=1, head_dim=40, head_dim_v=24)
    inputs = tensors(problem, gradients=True)
    outs = [LINEAR.attention(*inputs, problem=problem).out, with_tile(inputs, problem, SMALL, backward)]
    upstream = torch.randn_like(outs[0])
    expected, found = ([out, *torch.autograd.grad(out, inputs, upstream)] for out in outs)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


def test_parallel_chunked_and_token_by_token_agree() -> None:
    problem = Problem(seqlen_q=72, num_heads=2, head_dim=16, options={"chunk_size": 32})
    q, k, v = tensors(problem)
    parallel = truth(LINEAR_ELU, q, k, v, problem=problem).out
    chunked = linear_forward(q, k, v, problem=problem)
    state = states.new_state(LINEAR, problem, 72)
    pieces = [step(state.sums, [x[:, :, first : first + 8] for x in (q, k, v)]) for first in range(0, 72, 8)]
    for out in (chunked, torch.cat(pieces, dim=2)):
        torch.testing.assert_close(out.double(), parallel, rtol=1e-5, atol=1e-5)
    kept = states.append(LINEAR, states.new_state(LINEAR, problem, 72), k, v, problem=problem)
    torch.testing.assert_close(state.sums, kept.sums, rtol=1e-5, atol=1e-4)


def step(sums: Tensor, inputs: list[Tensor], added: tuple[int, ...] | None = None) -> Tensor:
    batch, _, tokens, _ = inputs[0].shape
    out: Tensor = torch.ops.attnbench.linear_step(*inputs, sums, added or (tokens,) * batch, SMALL)
    return out


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_step_is_what_the_operators_of_pytorch_compute(dtype: str) -> None:
    shape: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 24, "head_dim_v": 40}
    problem = Problem(seqlen_q=3, batch=2, dtype=dtype, key_lengths=(3, 1), **shape)
    q, k, v = tensors(problem)
    k[1, :, 1:], v[1, :, 1:] = torch.nan, torch.nan
    state = states.new_state(LINEAR, problem, 8)
    state.sums += torch.rand(state.sums.shape, generator=torch.Generator().manual_seed(0))
    sums = state.sums.clone()
    out = step(sums, [q, k, v], problem.key_limits)
    expected, state = states.extend(LINEAR, state, q, k, v, problem=problem)
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    torch.testing.assert_close(out, expected.out, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(sums, state.sums, rtol=1e-5, atol=1e-5)


def test_a_state_in_half_precision_inputs_does_not_stall() -> None:
    sums = torch.zeros(1, 1, 1, 2)
    ones = torch.ones(1, 1, 16, 1, dtype=torch.float16)
    sums[:] = 79_968.0
    assert torch.equal(step(sums, [ones] * 3), ones)
    assert torch.equal(sums, torch.full_like(sums, 80_000.0))


# Bit for bit.


def both(problem: Problem, q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor) -> list[Tensor]:
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out = with_tile(inputs, problem, SMALL)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad_out)]


def test_the_future_leaves_the_past_bit_identical() -> None:
    problem = Problem(seqlen_q=80, num_heads=1, head_dim=16)
    q, k, v = tensors(problem)
    before = with_tile([q, k, v], problem, SMALL)
    for position in (1, 32, 79):
        changed_k, changed_v = k.clone(), v.clone()
        changed_k[:, :, position:] *= -40
        changed_v[:, :, position:] += 1e6
        after = with_tile([q, changed_k, changed_v], problem, SMALL)
        assert torch.equal(before[:, :, :position], after[:, :, :position])
        assert not torch.equal(before[:, :, position:], after[:, :, position:])


@pytest.mark.parametrize("mask", [Causal(), Full()], ids=["causal", "full"])
def test_hidden_slots_and_rows_that_see_nothing_are_never_read(mask: Causal | Full) -> None:
    problem = Problem(
        seqlen_q=24,
        seqlen_k=44,
        batch=3,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        key_lengths=(30, 0, 44),
        query_start=(-7, 3, 12),
        mask=mask,
    )
    q, k, v = tensors(problem)
    grad_out = torch.randn(q.shape, generator=torch.Generator().manual_seed(1))
    clean = both(problem, q, k, v, grad_out)
    hidden = torch.zeros(3, 1, 44, 1, dtype=torch.bool)
    blind = torch.zeros(3, 1, 24, 1, dtype=torch.bool)
    hidden[0, :, 30:], hidden[1], blind[1] = True, True, True
    if mask == Causal():
        hidden[0, :, 17:], hidden[2, :, 36:], blind[0, :, :7] = True, True, True
    dirty = both(
        problem,
        q.masked_fill(blind, torch.nan),
        k.masked_fill(hidden, torch.nan),
        v.masked_fill(hidden, torch.nan),
        grad_out.masked_fill(blind, torch.nan),
    )
    for one, other in zip(clean, dirty, strict=True):
        assert torch.equal(one, other)
    out, dq, dk, dv = dirty
    for x, where in ((out, blind), (dq, blind), (dk, hidden), (dv, hidden)):
        assert not x.masked_select(where).any()


def test_gradients_are_deterministic_and_strides_do_not_matter() -> None:
    problem = Problem(seqlen_q=40, num_heads=2, num_kv_heads=1, head_dim=16, batch=2)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 40, 2, 16, generator=generator).transpose(1, 2)
    k = torch.randn(2, 1, 16, 40, generator=generator).transpose(-1, -2)
    v = torch.randn(1, 1, 40, 32, generator=generator).expand(2, 1, 40, 32)[..., ::2]
    grad_out = torch.randn(2, 40, 2, 16, generator=generator).transpose(1, 2)
    strided = both(problem, q, k, v, grad_out)
    straight = both(problem, *(x.contiguous() for x in (q, k, v, grad_out)))
    for one, other in zip(strided, straight, strict=True):
        assert torch.equal(one, other)


def test_features_that_all_underflow_give_zero_and_no_nan() -> None:
    problem = Problem(seqlen_q=5, num_heads=1, head_dim=16)
    q, k, v = tensors(problem)
    for result in both(problem, q, k - 200, v, torch.ones_like(v)):
        assert not result.any()


def test_products_beyond_the_range_of_float16_do_not_overflow() -> None:
    q = k = torch.full((1, 1, 40, 64), 100.0, dtype=torch.float16)
    v = torch.randn(1, 1, 40, 64, generator=torch.Generator().manual_seed(0)).half()
    problem = Problem(seqlen_q=40, num_heads=1, dtype="float16", mask=Full())
    out = linear_forward(q, k, v, problem=problem)
    assert torch.allclose(out.float(), v.float().mean(2, keepdim=True).expand_as(out), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), [(0, 4, 1), (3, 0, 1), (3, 3, 0)])
@pytest.mark.parametrize("mask", [Causal(), Full()], ids=["causal", "full"])
def test_empty_inputs_give_zeros_and_not_none(
    seqlen_q: int, seqlen_k: int, batch: int, mask: Causal | Full
) -> None:
    problem = Problem(seqlen_q=seqlen_q, seqlen_k=seqlen_k, batch=batch, num_heads=2, head_dim=16, mask=mask)
    q, k, v = tensors(problem)
    for result in both(problem, q, k, v, torch.ones(batch, 2, seqlen_q, 16)):
        assert not result.any()


# As operators of PyTorch.


def test_operators_keep_the_rules_of_pytorch() -> None:
    problem = Problem(seqlen_q=8, seqlen_k=16, num_heads=2, num_kv_heads=1, head_dim=16)
    operators = torch.ops.attnbench
    q, k, v = tensors(problem)
    grad_out = torch.randn_like(q)
    form = ((8,), (16,), True, SMALL)
    keys = operators.linear_states(k, v, 8, *form)
    out, total = operators.linear_output(q, k, v, keys, *form, SMALL)
    _, drop = operators.linear_dq(q, k, v, out, total, grad_out, keys, *form)
    later = operators.linear_query_states(q, grad_out, total, drop, 1, *form)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    calls = {
        operators.linear_states: (k, v, 8, *form),
        operators.linear_output: (*leaves, keys, *form, SMALL),
        operators.linear_dq: (q, k, v, out, total, grad_out, keys, *form),
        operators.linear_query_states: (q, grad_out, total, drop, 1, *form),
        operators.linear_dkdv: (q, k, v, total, grad_out, drop, later, *form),
        operators.linear_step: (q, k[:, :, :8], v[:, :, :8], torch.zeros(1, 1, 16, 17), (8,), SMALL),
    }
    for operator, arguments in calls.items():
        assert set(torch.library.opcheck(operator.default, arguments).values()) == {"SUCCESS"}


def test_the_compiler_of_pytorch_sees_no_break() -> None:
    problem = Problem(seqlen_q=20, num_heads=2, head_dim=16, mode="fwd_bwd")
    inputs = tensors(problem, gradients=True)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_forward(q, k, v, problem=problem)

    expected = attend(*inputs)
    out = torch.compile(attend, fullgraph=True, backend="aot_eager")(*inputs)
    assert torch.equal(out, expected)
    upstream = torch.randn_like(out)
    for one, other in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (out, expected)), strict=True):
        assert torch.equal(one, other)


def test_there_is_no_second_derivative_and_it_says_so() -> None:
    problem = Problem(seqlen_q=20, num_heads=1, head_dim=16)
    inputs = tensors(problem, gradients=True)
    (dq,) = torch.autograd.grad(linear_forward(*inputs, problem=problem).sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dq.sum().backward()
