"""Ways in which a wrong kernel could pass, each of them closed.

What it returns, what it leaves out, what it touches.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.measure.agreement import grade_outputs
from attnbench.measure.checking import verdict_in_words
from attnbench.measure.inputs import make_inputs
from attnbench.measure.pipeline import measure_case
from attnbench.measure.record import Record
from attnbench.measure.truth import make_yardstick
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

SETTINGS = MeasureSettings(launches=1, latency_budget_s=0.02, warmup_s=0.0, min_samples=3)
TOYS = Path(__file__).parents[1] / "toys"

KERNEL = '''"""Attention with a mistake."""

import dataclasses

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import AttentionOutput

NAIVE = get_implementation("naive")


def attention(q, k, v, *, problem, params=None):
    MISTAKE


IMPLEMENTATION = dataclasses.replace(NAIVE, name="wrong", attention=attention)
'''
RUN = "NAIVE.attention(q, k, v, problem=problem)"


@pytest.fixture
def wrong(tmp_path: Path) -> Any:
    """Measure a kernel with this body; all kernels of a test share the folder of truths."""

    def measure(body: str, **keys: Any) -> Record:
        path = tmp_path / f"kernel{len(list(tmp_path.iterdir()))}.py"
        path.write_text(KERNEL.replace("MISTAKE", body))
        return measured(implementation=str(path), scratch=tmp_path / "scratch", **keys)

    return measure


def measured(*, scratch: Path | None = None, **keys: Any) -> Record:
    case = Case.from_dict({"num_heads": 2, "head_dim": 16, "seqlen_q": 40, **keys})
    return measure_case(case, SETTINGS, scratch=scratch)


@pytest.mark.parametrize(
    ("body", "mode", "reason"),
    [
        (f"out = {RUN}; v.zero_(); return out", "fwd", "it writes to its inputs: v"),
        ("v.zero_(); return AttentionOutput(v)", "fwd", "it writes to its inputs: v"),
        (f"q.mul_(problem.softmax_scale); return {RUN}", "fwd", "it writes to its inputs: q"),
        (f"k = k.detach(); return {RUN}", "fwd_bwd", "dk is missing"),
        (f"return AttentionOutput({RUN}.out.double())", "fwd", "out: wrong_dtype"),
        (f"return AttentionOutput({RUN}.out[:, :1])", "fwd", "out: wrong_shape"),
        (f"return AttentionOutput({RUN}.out.transpose(1, 2))", "fwd", "out: wrong_shape"),
    ],
)
def test_it_is_incorrect_and_has_no_latency(wrong: Any, body: str, mode: str, reason: str) -> None:
    record = wrong(body, mode=mode)
    assert (record.status, record.reason) == ("incorrect", reason)
    assert record.latency is None


def test_a_kernel_that_writes_to_its_inputs_spoils_nobody_else_s_truth(wrong: Any, tmp_path: Path) -> None:
    assert wrong("v.zero_(); return AttentionOutput(v)").status == "incorrect"
    for name in ("naive", "sdpa"):
        record = measured(implementation=name, scratch=tmp_path / "scratch")
        assert (record.status, record.reason) == ("ok", None)


def test_a_promised_lse_has_to_be_there_and_right(wrong: Any) -> None:
    asked = {"options": {"return_lse": True}}
    missing = wrong(f"return AttentionOutput({RUN}.out)", **asked)
    assert (missing.status, missing.reason) == ("incorrect", "lse is missing")
    off = wrong(f"out, lse = {RUN}; return AttentionOutput(out, lse + 1e-3)", **asked)
    assert off.status == "incorrect"
    assert (off.reason or "").startswith("lse is off by")
    assert wrong(f"return {RUN}", **asked).status == "ok"


def test_truths_of_one_shape_with_other_options_are_kept_apart(tmp_path: Path) -> None:
    toy = str(TOYS / "low_rank.py")
    for rank in (8, 4, 8):
        record = measured(implementation=toy, options={"rank": rank}, mask={"name": "full"}, scratch=tmp_path)
        assert (record.status, record.reason) == ("ok", None)


def test_sixteen_bits_hide_what_float32_shows(wrong: Any) -> None:
    """A scale that is off by 0.1 % is within the rounding of float16."""
    body = f"q = q * 1.001; return {RUN}"
    record = wrong(body, dtype="float16", seqlen_q=200)
    assert record.status == "incorrect"
    assert (record.reason or "").startswith("in float32, out is off by")
    assert record.agreement is not None
    assert record.agreement.budget_used is not None
    assert record.agreement.budget_used <= 1
    right = wrong(f"return {RUN}", dtype="float16", seqlen_q=200)
    assert right.status == "ok"
    assert right.agreement is not None
    assert right.agreement.float32 is not None
    assert right.agreement.float32.verdict == "ok"


@pytest.mark.parametrize("lengths", [{"seqlen_q": 0}, {"seqlen_q": 3, "seqlen_k": 0}, {"batch": 0}])
def test_an_empty_case_is_called_empty_and_has_no_speed(lengths: dict[str, Any]) -> None:
    record = measured(implementation="naive", **lengths)
    assert record.status == "ok"
    assert record.latency is None
    assert record.unavailable["latency"] == "empty: there is nothing to compute"
    assert record.flops is not None
    assert record.flops.useful == 0


def test_a_result_of_which_nothing_was_compared_is_not_ok() -> None:
    problem = Problem(seqlen_q=8, num_heads=1, head_dim=8)
    inputs = make_inputs(problem, seed=0)
    yardstick = make_yardstick(SOFTMAX, problem, inputs, rows=None)
    nothing = torch.zeros(1, 1, 8, dtype=torch.bool)
    spoiled = torch.full_like(yardstick.plain.out, float("nan"))
    graded = grade_outputs(spoiled, None, {}, yardstick.truth, yardstick.plain, computed=nothing)
    assert (graded.verdict, graded.rows_checked) == ("not_compared", 0)
    assert verdict_in_words(graded) == "none of its rows could be compared with the truth"


def test_bytes_and_flops_are_the_problem_s_own_whatever_an_implementation_states(tmp_path: Path) -> None:
    path = tmp_path / "boastful.py"
    cost = "lambda problem: dataclasses.replace(NAIVE.cost(problem), flops=1, compulsory_bytes=1)"
    kernel = KERNEL.replace("MISTAKE", f"return {RUN}").replace('name="wrong"', f'name="wrong", cost={cost}')
    path.write_text(kernel)
    boastful, honest = measured(implementation=str(path)), measured(implementation="naive")
    assert boastful.status == "ok"
    assert boastful.flops is not None
    assert honest.flops is not None
    assert boastful.flops.useful == honest.flops.useful
    assert boastful.traffic is not None
    assert honest.traffic is not None
    assert boastful.traffic.compulsory_bytes == honest.traffic.compulsory_bytes


def test_later_calls_are_held_to_the_first(wrong: Any) -> None:
    """Right until it has been checked, wrong while it is timed."""
    forgetful = f"attention.calls = getattr(attention, 'calls', 0) + 1; out = {RUN}.out"
    record = wrong(f"{forgetful}; return AttentionOutput(out if attention.calls < 4 else out * 0)")
    assert record.status == "incorrect"
    assert (record.reason or "").startswith("a later call returned something else: out is off by")
    assert record.latency is None
    late = f"{forgetful}; q.mul_(1 if attention.calls < 4 else 1.5); return AttentionOutput(out)"
    assert wrong(late).status == "incorrect"


def test_a_bare_tensor_is_no_answer(wrong: Any) -> None:
    for batch in (1, 2):
        with pytest.raises(TypeError, match=r"must return AttentionOutput\(out, lse\), not Tensor"):
            wrong(f"return {RUN}.out", batch=batch)


def test_stated_peaks_stand_beside_measured_ones() -> None:
    record = measured(implementation="naive", seqlen_q=256)
    assert record.theory is not None
    assert record.memory is not None
    assert record.memory.peak_bytes is not None
    assert record.theory["peak_bytes"] == pytest.approx(record.memory.peak_bytes, rel=1e-2)


def test_foreign_words_become_one_printable_line() -> None:
    reason = "\x1b[31mred\x00\n" + "x" * 10**6
    record = Record(case_id="a", case={}, status="error", reason=reason)
    assert record.reason is not None
    assert record.reason.isprintable()
    assert record.reason.startswith("[31mred x")
    assert len(record.reason) < 510
