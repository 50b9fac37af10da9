"""Properties without any tolerance.

No leak from the future, exact zeros, NaN kept out, batch slots and strides that do not matter.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.contract.discovery import find_implementations
from attnbench.contract.implementation import AttentionOutput, Implementation, refusals
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.measure.inputs import make_inputs
from tests.implementations.conformance import run, uncompiled

DTYPES = ("float32", "float16")
Inputs = dict[str, Tensor]
OWN = ("triton-flash", "sliding-window", "linear")
"""Own code: the kernel reads by strides, the others pack what is spread before any library product."""
WINDOWED = [
    name
    for name, implementation in uncompiled().items()
    if {"mask:sliding-window", "mask:*"} & implementation.supports
    and not refusals(implementation, Problem(seqlen_q=70, mask=SlidingWindow(1)))
]


def causal_masks(implementation: Implementation) -> list[Mask]:
    candidates = [Causal(), SlidingWindow(1), SlidingWindow(5), SlidingWindow(40)]
    supports = implementation.supports
    return [mask for mask in candidates if f"mask:{mask.name}" in supports or "mask:*" in supports]


def every(*modes: str, **shape: Any) -> Iterator[Any]:
    """One parameter set per implementation, causal mask, dtype and supported mode."""
    for name, implementation in uncompiled().items():
        for mask in causal_masks(implementation):
            for dtype in DTYPES:
                problem = Problem(
                    **{"num_heads": 2, "head_dim": 16, **shape}, mask=mask, dtype=dtype, mode=modes[0]
                )
                best = [p for mode in modes if not refusals(implementation, p := problem.replace(mode=mode))]
                if best:
                    yield pytest.param(name, best[0], id=f"{name}-{mask.slug}-{dtype}-{best[0].mode}")


def equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Bit for bit, -inf included, NaN never."""
    return (one is None) == (other is None) and (one is None or other is None or torch.equal(one, other))


@pytest.mark.parametrize(("name", "problem"), list(every("fwd", seqlen_q=70, batch=2)))
@pytest.mark.parametrize("position", [1, 20, 63, 64, 69])
def test_a_changed_future_leaves_the_past_bit_identical(name: str, problem: Problem, position: int) -> None:
    implementation = find_implementations()[name]
    inputs = make_inputs(problem, seed=1)
    before, _ = run(implementation, problem, inputs)
    changed = {key: tensor.clone() for key, tensor in inputs.items()}
    for key in ("q", "k", "v"):
        changed[key][:, :, position:] = torch.randn(changed[key][:, :, position:].shape) * 50
    after, _ = run(implementation, problem, changed)
    assert torch.equal(before.out[:, :, :position], after.out[:, :, :position])
    assert not torch.equal(before.out[:, :, position:], after.out[:, :, position:])


@pytest.mark.parametrize(("name", "problem"), list(every("fwd_bwd", seqlen_q=70, batch=2, num_kv_heads=1)))
@pytest.mark.parametrize("position", [1, 33, 64])
def test_masked_gradients_are_exactly_zero(name: str, problem: Problem, position: int) -> None:
    inputs = make_inputs(problem, seed=2)
    inputs["grad_out"][:, :, position:] = 0
    _, gradients = run(find_implementations()[name], problem, inputs)
    for key in ("dq", "dk", "dv"):
        assert torch.equal(gradients[key][:, :, position:], torch.zeros_like(gradients[key][:, :, position:]))
    assert float(gradients["dv"][:, :, :position].abs().sum()) > 0
    band = problem.mask.band()
    if band is not None and band.left is not None:
        last_alone = make_inputs(problem, seed=2)
        last_alone["grad_out"][:, :, :-1] = 0
        _, gradients = run(find_implementations()[name], problem, last_alone)
        unseen = max(0, 69 - band.left)
        assert torch.equal(gradients["dk"][:, :, :unseen], torch.zeros_like(gradients["dk"][:, :, :unseen]))
        assert torch.equal(gradients["dv"][:, :, :unseen], torch.zeros_like(gradients["dv"][:, :, :unseen]))


@pytest.mark.parametrize(("name", "problem"), list(every("fwd_bwd", "fwd", seqlen_q=70, batch=3)))
def test_batch_slots_do_not_touch_each_other(name: str, problem: Problem) -> None:
    implementation = find_implementations()[name]
    inputs = make_inputs(problem, seed=3)
    before, gradients_before = run(implementation, problem, inputs)
    changed = {key: tensor.clone() for key, tensor in inputs.items()}
    for tensor in changed.values():
        tensor[1] = torch.randn(tensor[1].shape)
    after, gradients_after = run(implementation, problem, changed)
    for one, other in [
        (before.out, after.out),
        *((gradients_before[k], gradients_after[k]) for k in gradients_before),
    ]:
        assert torch.equal(one[[0, 2]], other[[0, 2]])
    assert not torch.equal(before.out[1], after.out[1])


HIDDEN: dict[str, Callable[[Mask], dict[str, Any]]] = {
    "padding": lambda mask: {"seqlen_q": 40, "batch": 3, "key_lengths": (0, 1, 17), "mask": mask},
    "cache": lambda mask: {"seqlen_q": 2, "seqlen_k": 16, "query_start": 4, "key_lengths": (6,), "mask":
    mask}, "cache-by-causality": lambda mask: {"seqlen_q": 2, "seqlen_k": 16, "query_start": 6, "mask": mask},
    "ragged-cache": lambda mask: {
        "seqlen_q": 3, "seqlen_k": 90, "batch": 2, "query_start": (7, 70), "key_lengths": (10, 73), "mask":
        mask,
    },
    "left-of-the-window": lambda mask: {"seqlen_q": 3, "seqlen_k": 130, "mask": mask},
}  # fmt: skip


POISONS = (float("nan"), float("inf"), -float("inf"))


def hidden_cases() -> Iterator[Any]:
    for name, implementation in uncompiled().items():
        masks = [
            *causal_masks(implementation)[:3],
            *([Full()] if "mask:full" in implementation.supports else []),
        ]
        for mask in masks:
            for shape_name, shape in HIDDEN.items():
                for dtype in DTYPES:
                    problem = Problem(**shape(mask), num_heads=4, num_kv_heads=2, head_dim=16, dtype=dtype)
                    if problem.keys_seen() == problem.batch * 2 * problem.seqlen_k:
                        continue
                    modes = [
                        p
                        for m in ("fwd_bwd", "fwd")
                        if not refusals(implementation, p := problem.replace(mode=m))
                    ]
                    for poison in POISONS if modes else ():
                        # Interpreted kernels are slow: NaN in float32, the rest where lengths differ.
                        nan = poison != poison and dtype == "float32"
                        brief = name != "triton-flash" or nan or shape_name == "ragged-cache"
                        yield pytest.param(
                            name,
                            modes[0],
                            poison,
                            id=f"{name}-{mask.slug}-{shape_name}-{dtype}-{poison}",
                            marks=[] if brief else [pytest.mark.long],
                        )


def hidden_slots(problem: Problem) -> Tensor:
    """``[B, Sk]``: the keys that no query of their batch row sees."""
    rows = []
    for b in range(problem.batch):
        seen = torch.zeros(problem.seqlen_k, dtype=torch.bool)
        limit = problem.key_limits[b]
        seen[:limit] = torch.from_numpy(
            problem.mask.keys_seen(problem.seqlen_q, limit, problem.query_starts[b])
        )
        rows.append(~seen)
    return torch.stack(rows)


@lru_cache(maxsize=1)
def with_zeros_in_hidden_slots(name: str, problem: Problem) -> tuple[AttentionOutput, Inputs]:
    """What every poison is held against."""
    hidden = hidden_slots(problem)[:, None, :, None]
    inputs = make_inputs(problem, seed=4)
    clean = {key: t.masked_fill(hidden, 0) if key in ("k", "v") else t for key, t in inputs.items()}
    return run(find_implementations()[name], problem, clean)


@pytest.mark.parametrize(("name", "problem", "poison"), list(hidden_cases()))
def test_what_lies_in_hidden_slots_never_leaks(name: str, problem: Problem, poison: float) -> None:
    hidden = hidden_slots(problem)[:, None, :, None]
    inputs = make_inputs(problem, seed=4)
    dirty = {key: t.masked_fill(hidden, poison) if key in ("k", "v") else t for key, t in inputs.items()}
    expected, expected_gradients = with_zeros_in_hidden_slots(name, problem)
    actual, gradients = run(find_implementations()[name], problem, dirty)
    assert torch.isfinite(actual.out).all()
    assert torch.equal(actual.out, expected.out)
    assert equal(actual.lse, expected.lse)
    for key, gradient in gradients.items():
        assert torch.equal(gradient, expected_gradients[key])
        if key in ("dk", "dv"):
            assert torch.equal(
                gradient.masked_select(hidden), torch.zeros(int(hidden.sum()) * 2 * 16, dtype=gradient.dtype)
            )


@pytest.mark.parametrize(
    ("name", "problem"), list(every("fwd_bwd", "fwd", seqlen_q=40, batch=2, query_start=(-15, 0)))
)
def test_rows_that_see_nothing_are_zero(name: str, problem: Problem) -> None:
    implementation = find_implementations()[name]
    if "lse" in implementation.supports:
        problem = problem.replace(options={"return_lse": True})
    result, gradients = run(implementation, problem, make_inputs(problem, seed=5))
    assert torch.equal(result.out[0, :, :15], torch.zeros_like(result.out[0, :, :15]))
    assert torch.isfinite(result.out).all()
    if result.lse is not None:
        assert bool((result.lse[0, :, :15] == -torch.inf).all())
        assert torch.isfinite(result.lse[0, :, 15:]).all()
    if gradients:
        assert torch.equal(gradients["dq"][0, :, :15], torch.zeros_like(gradients["dq"][0, :, :15]))
        assert all(torch.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WINDOWED)
def test_a_window_of_one_returns_v(name: str, dtype: str) -> None:
    implementation = find_implementations()[name]
    problem = Problem(
        seqlen_q=70, num_heads=4, num_kv_heads=2, head_dim=16, mask=SlidingWindow(1), dtype=dtype
    )
    inputs = make_inputs(problem, seed=6)
    result, _ = run(implementation, problem, inputs)
    assert torch.equal(result.out, inputs["v"].repeat_interleave(2, dim=1))


def views(inputs: Inputs, problem: Problem) -> dict[str, Inputs]:
    """The same numbers in other strides.

    Heads behind length, slices of a wider tensor, a stride of 0, a reversed layout.
    """
    wide = {
        key: torch.cat([t, torch.full_like(t, float("nan"))], dim=-1)[..., : t.shape[-1]]
        for key, t in inputs.items()
    }
    return {
        "transposed": {key: t.transpose(1, 2).contiguous().transpose(1, 2) for key, t in inputs.items()},
        "sliced": wide,
        "columns": {key: t.transpose(-1, -2).contiguous().transpose(-1, -2) for key, t in inputs.items()},
        "expanded": {
            key: t[:, :1].expand(t.shape)
            if key in ("k", "v")
            else t[:, :, :1].expand(t.shape)
            if key == "grad_out"
            else t
            for key, t in inputs.items()
        },
    }


VIEWS = ("transposed", "sliced", "columns", "expanded")


def strided_cases() -> Iterator[Any]:
    """Of interpreted kernels, which are slow, float16 goes to the long set."""
    for case, view in product(every("fwd_bwd", "fwd", seqlen_q=33, batch=2), VIEWS):
        name, problem = case.values
        slow = name == "triton-flash" and problem.dtype == "float16"
        yield pytest.param(
            name, problem, view, id=f"{case.id}-{view}", marks=[pytest.mark.long] if slow else []
        )


@pytest.mark.parametrize(("name", "problem", "view"), list(strided_cases()))
def test_strides_change_nothing(name: str, problem: Problem, view: str) -> None:
    """Own code bit for bit, the rest up to rounding: a library's product may be blocked by layout."""
    implementation = find_implementations()[name]
    strided = views(make_inputs(problem, seed=7), problem)[view]
    packed = {key: t.contiguous() for key, t in strided.items()}
    expected, expected_gradients = run(implementation, problem, packed)
    actual, gradients = run(implementation, problem, strided)
    eps = torch.finfo(getattr(torch, problem.dtype)).eps
    pairs = [(actual.out, expected.out), *((gradients[key], expected_gradients[key]) for key in gradients)]
    for one, other in pairs:
        if name in OWN:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other, rtol=8 * eps, atol=16 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OWN)
def test_a_packed_tensor_and_shared_heads_get_the_gradients_of_copies(name: str, dtype: str) -> None:
    """q is part of a packed tensor, k and v are one head for all, ``out.sum()`` gives strides of 0."""
    implementation = find_implementations()[name]
    mask = SlidingWindow(7) if name == "sliding-window" else Causal()
    problem = Problem(seqlen_q=33, batch=2, num_heads=3, head_dim=16, mask=mask, dtype=dtype, mode="fwd_bwd")
    generator = torch.Generator().manual_seed(9)
    packed = torch.randn(2, 33, 5, 16, generator=generator).to(getattr(torch, dtype)).requires_grad_()
    by_heads = packed.transpose(1, 2)
    views = by_heads[:, :3], by_heads[:, 3:4].expand(2, 3, 33, 16), by_heads[:, 4:].expand(2, 3, 33, 16)
    copies = [x.detach().contiguous().requires_grad_() for x in views]
    out = implementation.attention(*views, problem=problem).out
    expected = implementation.attention(*copies, problem=problem).out
    assert torch.equal(out, expected)
    (gradient,) = torch.autograd.grad(out.sum(), packed)
    dq, dk, dv = torch.autograd.grad(expected, copies, torch.ones_like(expected))
    parts = [dq, dk.sum(1, keepdim=True), dv.sum(1, keepdim=True)]
    assert torch.equal(gradient, torch.cat(parts, dim=1).transpose(1, 2))
