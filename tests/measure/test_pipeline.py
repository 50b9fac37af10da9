"""One case from beginning to end: what gets which status, and what a record then holds."""

from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.measure.pipeline import measure_case, measure_task
from attnbench.measure.provenance import source_hash
from attnbench.measure.record import Record, record_from_dict
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

QUICK = MeasureSettings(launches=1, latency_budget_s=0.02, warmup_s=0.0, min_samples=3, reference_rows=64)
SMALL: dict[str, Any] = {"num_heads": 2, "head_dim": 16, "seqlen_q": 40}

WRONG = '''"""Attention with a mistake."""

import dataclasses

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import AttentionOutput

NAIVE = get_implementation("naive")


def attention(q, k, v, *, problem, params=None):
    out = NAIVE.attention(q, k, v, problem=problem).out
    return AttentionOutput(MISTAKE)


IMPLEMENTATION = dataclasses.replace(NAIVE, name="wrong", summary="Wrong", attention=attention)
'''


def measured(**keys: Any) -> Record:
    return measure_case(Case.from_dict({**SMALL, **keys}), QUICK)


@pytest.mark.parametrize("name", ["naive", "sdpa", "linear"])
@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_a_case_that_is_fine_has_every_section(name: str, mode: str) -> None:
    record = measured(implementation=name, mode=mode)
    assert (record.status, record.reason) == ("ok", None)
    assert record.latency is not None
    assert record.latency.samples_ms
    assert record.latency.median_ms is not None
    assert record.latency.median_ms > 0
    assert record.memory is not None
    assert record.memory.predicted_peak_bytes == record.memory.peak_bytes
    assert record.traffic is not None
    assert record.traffic.operand_bytes is not None
    assert record.traffic.compulsory_bytes is not None
    assert record.traffic.operand_bytes >= record.traffic.compulsory_bytes or mode == "bwd"
    assert record.flops is not None
    assert record.flops.useful
    assert record.flops.executed
    assert record.agreement is not None
    assert record.agreement.verdict == "ok"
    assert record.agreement.budget_used is not None
    assert 0 < record.agreement.budget_used <= 1
    assert (record.agreement.gradients is None) == (mode == "fwd")
    assert (record.agreement.softmax_distance is not None) == (name == "linear")
    assert record.theory is not None
    assert record.provenance is not None
    assert record.provenance.backend == {"naive": None, "sdpa": "flash (CPU)", "linear": None}[name]
    assert record_from_dict(record.to_dict()) == record


def test_an_interpreted_kernel_has_numbers_and_bytes_and_no_speed() -> None:
    record = measured(implementation="triton-flash")
    assert record.status == "ok"
    assert record.latency is None
    assert "never a speed" in record.unavailable["latency"]
    assert record.agreement is not None
    assert record.agreement.lse is not None
    assert record.traffic is not None
    assert record.theory is not None
    assert record.traffic.requested_bytes == record.theory["requested_bytes"]
    assert record.traffic.requested_backend == "triton-interpreter"


@pytest.mark.parametrize("mask", [{"name": "causal"}, {"name": "full"}])
def test_long_interpreted_cases_are_sampled_and_say_so(mask: dict[str, Any]) -> None:
    record = measured(implementation="triton-flash", seqlen_q=4096, num_heads=8, head_dim=64, mask=mask)
    assert record.status == "ok"
    assert record.agreement is not None
    assert record.agreement.programs is not None
    run, _, total = record.agreement.programs.split()
    assert 0 < int(run) < int(total) == 8 * 32
    assert record.agreement.rows_checked is not None
    assert 8 <= record.agreement.rows_checked < 64 * 8
    assert record.provenance is not None
    assert "kernel programs interpreted" in (record.provenance.reduced or "")
    assert "truth on 6" in (record.provenance.reduced or "")
    assert record.traffic is not None
    assert record.theory is not None
    assert record.traffic.requested_bytes == record.theory["requested_bytes"]


def test_what_is_not_supported_is_refused_before_anything_runs() -> None:
    record = measured(implementation="flex", mode="decode")
    assert (record.status, record.reason) == ("unsupported", "flex does not support decode")
    assert record.memory is None
    assert measured(implementation="sdpa-cudnn").reason == "the cudnn backend is for CUDA only"


def test_a_case_that_cannot_fit_is_oom_with_its_bytes_and_is_not_run() -> None:
    case = Case.from_dict({"implementation": "naive", "seqlen_q": 131072, "num_heads": 8, "head_dim": 64})
    record = measure_case(case, QUICK, memory_limit_bytes=1 << 34)
    assert record.status == "oom"
    assert record.memory is not None
    scores = 8 * 131072 * 131072 * 4
    assert record.memory.predicted_peak_bytes is not None
    assert 2 * scores < record.memory.predicted_peak_bytes < 2.01 * scores
    assert record.memory.predicted_peak_bytes > 10**12
    assert str(record.memory.predicted_peak_bytes) in (record.reason or "")


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("out * 1.001", "out is off by"),
        ("out + float('nan')", "out holds 1280 values that are not finite"),
        ("out.roll(1, dims=2)", "out is off by"),
        ("out[:, :, :-1]", "out: wrong_shape"),
    ],
)
def test_a_wrong_result_never_gets_a_speed(mistake: str, words: str, tmp_path: Path) -> None:
    kernel = tmp_path / "wrong.py"
    kernel.write_text(WRONG.replace("MISTAKE", mistake))
    record = measured(implementation=str(kernel))
    assert record.status == "incorrect"
    assert record.latency is None
    assert words in (record.reason or "")


def test_a_wrong_gradient_is_found(tmp_path: Path) -> None:
    kernel = tmp_path / "wrong.py"
    kernel.write_text(
        WRONG.replace("MISTAKE", "out.detach() * 0.01 + 0.99 * out if out.requires_grad else out")
    )
    record = measured(implementation=str(kernel), mode="fwd_bwd")
    assert record.status == "incorrect"
    assert any(f"{name} is off by" in (record.reason or "") for name in ("dq", "dk", "dv"))
    assert measured(implementation=str(kernel)).status == "ok"


def test_truth_on_sampled_rows_finds_a_wrong_row_among_them(tmp_path: Path) -> None:
    kernel = tmp_path / "wrong.py"
    kernel.write_text(WRONG.replace("MISTAKE", "out.index_fill(2, out.new_tensor([128]).long(), 0)"))
    record = measured(implementation=str(kernel), seqlen_q=300)
    assert record.status == "incorrect"


@pytest.mark.parametrize("mode", [pytest.param("fwd", marks=pytest.mark.long), "fwd_bwd"])
@pytest.mark.parametrize("name", ["naive", "sdpa", "linear", "sliding-window"])
def test_a_model_on_real_text(name: str, mode: str) -> None:
    mask = {"name": "sliding-window", "window_size": 8} if name == "sliding-window" else {"name": "causal"}
    keys = {"level": "model", "preset": "small-decoder", "inputs": "text", "seqlen_q": 32}
    case = Case.from_dict({**keys, "implementation": name, "mode": mode, "mask": mask})
    record = measure_case(case, QUICK)
    assert record.status == "ok", record.reason
    assert record.agreement is not None
    assert record.agreement.verdict == "ok"
    assert (record.agreement.gradients is not None) == (mode == "fwd_bwd")
    assert record.latency is not None


def test_a_block(tmp_path: Path) -> None:
    case = Case(level="block", preset="small-decoder", implementation="sdpa", mode="fwd_bwd", seqlen_q=32)
    record = measure_case(case, QUICK, scratch=tmp_path)
    assert record.status == "ok", record.reason
    assert record.agreement is not None
    assert record.agreement.gradients


def test_the_upstream_gradient_that_is_timed_is_whole_again() -> None:
    from attnbench.measure.checking import rows_to_check, upstream_on
    from attnbench.measure.workload import build_workload

    workload = build_workload(
        Case.from_dict({**SMALL, "implementation": "naive", "mode": "fwd_bwd", "seqlen_q": 200})
    )
    before = workload.inputs["grad_out"].clone()
    with upstream_on(workload, rows_to_check(workload, QUICK)):
        assert int((workload.inputs["grad_out"].abs().sum(dim=(0, 1, 3)) == 0).sum()) > 100
    assert torch.equal(workload.inputs["grad_out"], before)


def test_only_what_was_asked_for_is_recorded_and_agreement_always() -> None:
    settings = MeasureSettings(metrics=("memory",), reference_rows=64)
    record = measure_case(Case.from_dict({**SMALL, "implementation": "sdpa"}), settings)
    assert record.latency is None
    assert record.traffic is None
    assert record.flops is None
    assert record.memory is not None
    assert record.agreement is not None


def test_a_task_is_plain_data_on_both_sides(tmp_path: Path) -> None:
    case = Case.from_dict({**SMALL, "implementation": "sdpa"})
    plain = measure_task(case.to_dict(), {"metrics": ["flops"], "seed": 7}, {"scratch": str(tmp_path)})
    assert plain["schema_version"] == 1
    assert plain["provenance"]["seed"] == 7
    assert list((tmp_path / "truths").iterdir())


def test_a_source_hash_follows_the_file(tmp_path: Path) -> None:
    from attnbench.contract.discovery import get_implementation

    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text(WRONG.replace("MISTAKE", "out"))
    other.write_text(WRONG.replace("MISTAKE", "out * 1"))
    hashes = {source_hash(get_implementation(str(path))) for path in (one, other)}
    assert len(hashes) == 2
    assert None not in hashes
    assert source_hash(get_implementation("sdpa-math")) == source_hash(get_implementation("sdpa"))


def test_a_kernel_that_leaves_nan_is_wrong_even_where_programs_are_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that were not computed hold NaN too: which ones they are is known from the sample."""
    from attnbench.contract.discovery import find_implementations
    from attnbench.contract.implementation import AttentionOutput, Implementation

    flash = find_implementations()["triton-flash"]

    def broken(*tensors: Any, **keywords: Any) -> AttentionOutput:
        out, lse = flash.attention(*tensors, **keywords)
        return AttentionOutput(out * float("nan"), None if lse is None else lse * float("nan"))

    fields = {name: getattr(flash, name) for name in Implementation.__dataclass_fields__}
    spoiled = Implementation(**{**fields, "attention": broken})
    monkeypatch.setattr("attnbench.measure.attentions.get_implementation", lambda name: spoiled)
    record = measured(implementation="triton-flash", seqlen_q=4096, num_heads=2)
    assert record.status == "incorrect"
    assert "not finite" in (record.reason or "")


def test_a_mixer_without_a_core_is_unsupported_at_level_attention_and_runs_in_a_model() -> None:
    toy = str(Path(__file__).parents[1] / "toys" / "lstm_mixer.py")
    record = measured(implementation=toy)
    assert record.status == "unsupported"
    assert "has no q/k/v core" in (record.reason or "")
    case = Case(level="model", preset="tiny", implementation=toy, seqlen_q=16, inputs="text")
    record = measure_case(case, QUICK)
    assert (record.status, record.reason) == ("ok", None)
