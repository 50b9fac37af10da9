"""FlexAttention: its tiles against enumeration and PyTorch's own, its numbers uncompiled on every shape and
compiled on a few, and what a record says of a call that nothing sees into.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import create_block_mask

from attnbench.contract.api import attend
from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.implementations._flex_blocks import _tiles_of_band, _tiles_of_rows, block_mask_of, predicate
from attnbench.measure.counting import UNSEEN
from attnbench.measure.pipeline import measure_case
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from tests.implementations.conformance import DEFAULTS, SHAPES, graded, inputs_for
from tests.toys.global_mask import GlobalWindow

CPU = torch.device("cpu")
MASKS: list[Mask] = [Full(), Causal(), SlidingWindow(7), SlidingWindow(200, causal=False), GlobalWindow(9, 3)]
SPREAD: dict[str, dict[str, Any]] = {
    "square": {"seqlen_q": 512},
    "tails": {"seqlen_q": 300, "seqlen_k": 513},
    "more-queries": {"seqlen_q": 400, "seqlen_k": 130},
    "one-length": {"seqlen_q": 256, "key_lengths": (200,)},
    "ragged": {"seqlen_q": 257, "batch": 3, "key_lengths": (0, 128, 257), "query_start": (0, -130, 300)},
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:flex_attention called without")


def problems(shapes: dict[str, dict[str, Any]], *dtypes: str) -> list[Any]:
    """Every mask on every shape that the CPU takes."""
    core = get_implementation("flex")
    made = [
        (Problem(**{**DEFAULTS, **shape}, mask=mask, dtype=dtype), f"{mask.slug}-{name}-{dtype}")
        for mask in MASKS
        for name, shape in shapes.items()
        for dtype in dtypes
    ]
    return [pytest.param(problem, id=name) for problem, name in made if not refusals(core, problem)]


@pytest.fixture
def uncompiled_call() -> Iterator[None]:
    """The same call with PyTorch's compiler standing aside: the operator computes densely."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize("problem", problems(SPREAD, "float32"))
def test_tiles_are_those_that_enumeration_finds(problem: Problem) -> None:
    visited, full = _tiles_of_rows(problem)
    assert bool((visited | ~full).all())
    band = problem.mask.band()
    if band is not None:
        in_closed_form = _tiles_of_band(problem, band)
        assert torch.equal(in_closed_form[0].expand_as(visited), visited)
        assert torch.equal(in_closed_form[1].expand_as(full), full)


@pytest.mark.parametrize("mask", MASKS[1:], ids=lambda mask: mask.slug)
def test_the_block_mask_is_what_pytorch_makes_of_the_predicate(mask: Mask) -> None:
    problem = Problem(seqlen_q=300, seqlen_k=400, batch=2, key_lengths=(170, 400), mask=mask, mode="fwd_bwd")
    ours = block_mask_of(problem, CPU)
    theirs = create_block_mask(predicate(problem, CPU), 2, None, 300, 400, device="cpu")
    for sides in (("kv_num_blocks", "kv_indices"), ("full_q_num_blocks", "full_q_indices")):
        assert torch.equal(*(getattr(one, sides[0]).expand(2, 1, -1) for one in (ours, theirs)))
        assert torch.equal(*(getattr(one, sides[1]).expand(2, 1, -1, -1) for one in (ours, theirs)))


def test_nothing_hidden_wants_no_mask() -> None:
    assert block_mask_of(Problem(seqlen_q=300, mask=Full()), CPU) is None
    assert block_mask_of(Problem(seqlen_q=300, mask=SlidingWindow(300, causal=False)), CPU) is None


@pytest.mark.usefixtures("uncompiled_call")
@pytest.mark.parametrize("problem", problems(SHAPES, "float32", "bfloat16"))
def test_within_budget_uncompiled(problem: Problem) -> None:
    agreement = graded("flex", problem)
    assert agreement.verdict == "ok", agreement


def poisoned(problem: Problem) -> dict[str, Tensor]:
    """Inputs with NaN in every slot behind the key lengths."""
    inputs = {name: x.clone() for name, x in inputs_for(problem).items()}
    for b, limit in enumerate(problem.key_limits):
        inputs["k"][b, :, limit:] = inputs["v"][b, :, limit:] = float("nan")
    return inputs


@pytest.mark.long
@pytest.mark.parametrize(
    "problem",
    [
        Problem(seqlen_q=70, batch=3, num_heads=4, num_kv_heads=2, head_dim=24, key_lengths=(0, 33, 70)),
        Problem(seqlen_q=40, batch=2, query_start=(-15, 0), mask=SlidingWindow(7), dtype="float16"),
        Problem(seqlen_q=200, mask=GlobalWindow(9, 3), num_heads=2, head_dim=16, head_dim_v=40),
        Problem(seqlen_q=130, seqlen_k=200, mask=Full(), dtype="bfloat16", num_heads=1),
    ],
    ids=["ragged", "rows-see-nothing", "predicate", "full"],
)
def test_compiled_and_with_nan_in_hidden_slots(problem: Problem) -> None:
    assert graded("flex", problem).verdict == "ok"
    core, inputs = get_implementation("flex"), poisoned(problem)
    with torch.no_grad():
        out = core.attention(inputs["q"], inputs["k"], inputs["v"], problem=problem).out
    assert bool(torch.isfinite(out).all())
    for b in range(problem.batch):
        seen = problem.mask.queries_seeing(
            problem.seqlen_q, problem.key_limits[b], problem.query_starts[b], b, 0
        )
        assert not out[b, :, ~torch.from_numpy(seen)].any()


@pytest.mark.long
def test_a_record_of_what_is_compiled() -> None:
    """One compilation; the numbers are checked as they come from the compiled call."""
    case = Case(
        implementation="flex",
        seqlen_q=200,
        batch=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        key_lengths=(0, 190),
        mask={"name": "sliding-window", "window_size": 20},
    )
    settings = MeasureSettings(latency_budget_s=0.05, warmup_s=0.0, min_samples=3)
    record = measure_case(case, settings)
    assert record.status == "ok", record.reason
    assert record.agreement.verdict == "ok"
    assert 1e3 * record.latency.compile_s > 10 * record.latency.median_ms
    unseen = ("memory.peak_bytes", "memory.peak_increment_bytes", "traffic.operand_bytes", "flops.executed")
    assert {record.unavailable[name] for name in unseen} == {UNSEEN}
    assert record.memory.peak_bytes is record.traffic.operand_bytes is record.flops.executed is None
    assert "fake tensors" in record.unavailable["memory.predicted_peak_bytes"]
    assert record.flops.useful == case.problem().pairs() * 4 * 16
    assert record.traffic.compulsory_bytes > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "fwd_bwd"}, "no backward pass on the CPU"),
        ({"options": {"return_lse": True}}, "no lse on the CPU"),
        ({"seqlen_q": 0}, "no empty dimension"),
        ({"head_dim": 8, "device": "cuda"}, "heads of at least 16"),
        ({"dtype": "float64"}, "does not support dtype:float64"),
        ({"mode": "decode"}, "does not support decode"),
    ],
)
def test_refusals_say_why(changes: dict[str, Any], reason: str) -> None:
    (said,) = refusals(get_implementation("flex"), Problem(seqlen_q=8).replace(**changes))
    assert reason in said


def test_a_machine_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    (said,) = refusals(get_implementation("flex"), Problem(seqlen_q=8))
    assert said == "FlexAttention is compiled by a C++ compiler on the CPU, and there is no g++"
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o755)
    assert refusals(get_implementation("flex"), Problem(seqlen_q=8)) == []
    monkeypatch.setenv("CXX", os.fspath(tmp_path / "other"))
    assert "there is no" in refusals(get_implementation("flex"), Problem(seqlen_q=8))[0]


@pytest.mark.usefixtures("uncompiled_call")
def test_attend_asks_for_lse_only_where_there_is_one() -> None:
    q = torch.randn(1, 2, 20, 16)
    assert attend(q, q, q, implementation="flex").lse is None


def test_fake_tensors_are_refused() -> None:
    problem = Problem(seqlen_q=8, num_heads=1, head_dim=16)
    with FakeTensorMode():
        x = torch.empty(1, 1, 8, 16)
    with pytest.raises(NotImplementedError, match="tensors that hold numbers"):
        get_implementation("flex").attention(x, x, x, problem=problem)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(100)], ids=lambda mask: mask.slug)
def test_on_cuda_with_lse_and_gradients(mask: Mask) -> None:
    shape: dict[str, Any] = {
        "seqlen_q": 300,
        "batch": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "key_lengths": (170, 300),
    }
    problem = Problem(**shape, mask=mask, device="cuda", mode="fwd_bwd", options={"return_lse": True})
    leaves = [x.cuda().requires_grad_() for name, x in inputs_for(problem).items() if name in ("q", "k", "v")]
    upstream = inputs_for(problem)["grad_out"].cuda()
    torch.backends.cuda.matmul.allow_tf32 = False
    results = []
    for name in ("flex", "naive"):
        out, lse = get_implementation(name).attention(*leaves, problem=problem)
        results.append((out, lse, *torch.autograd.grad(out, leaves, upstream)))
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
