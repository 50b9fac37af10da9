"""A later launch times a case and nothing else, and a wrong result gets no speed there either."""

from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.measure import later_launch
from attnbench.measure.checking import crc32_of
from attnbench.measure.later_launch import time_again, time_again_task
from attnbench.measure.pipeline import measure_case
from attnbench.measure.record import record_from_dict
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

QUICK = MeasureSettings(latency_budget_s=0.02, warmup_s=0.0, min_samples=3, reference_rows=64)
SMALL: dict[str, Any] = {"num_heads": 2, "head_dim": 16, "seqlen_q": 40}

LATER_WRONG = '''"""Attention that is right in the process that finds no mark, and {deed} in the next."""

import dataclasses
from pathlib import Path

from attnbench.contract.discovery import get_implementation

NAIVE = get_implementation("naive")
MARK = Path({mark!r})


def attention(q, k, v, *, problem, params=None):
    output = NAIVE.attention(q, k, v, problem=problem)
    if MARK.exists():
        {code}
    return output


IMPLEMENTATION = dataclasses.replace(NAIVE, name="moody", summary="Moody", attention=attention)
'''


@pytest.mark.parametrize("keys", [
    {"implementation": "naive", "mode": "fwd"},
    {"implementation": "sdpa", "mode": "fwd_bwd"},
    {"implementation": "linear", "mode": "bwd"},
    {"implementation": "naive", "mode": "decode", "seqlen_q": 1, "seqlen_k": 40},
    {"implementation": "naive", "level": "model", "preset": "small-decoder", "seqlen_q": 16},
])  # fmt: skip
def test_a_later_launch_agrees_with_the_first_to_the_bit_and_holds_a_latency_alone(keys, monkeypatch):
    monkeypatch.setattr(later_launch, "prepare_check", None)  # the truth is not made again
    case = Case.from_dict({**(SMALL if keys.get("level") is None else {}), **keys})
    first = measure_case(case, QUICK)
    assert first.status == "ok", first.reason
    assert first.agreement is not None
    assert first.agreement.out_crc32 is not None
    record = time_again(case, QUICK, out_crc32=first.agreement.out_crc32)
    assert record.status == "ok"
    assert record.latency is not None
    assert record.latency.launches == 1
    assert record.latency.samples_ms
    assert record.telemetry is not None
    for other in (record.memory, record.agreement, record.flops, record.traffic):
        assert other is None
    assert record.provenance is not None
    assert first.provenance is not None
    assert record.provenance.source_hash == first.provenance.source_hash
    assert record.provenance.work_s
    assert record_from_dict(record.to_dict()) == record


@pytest.mark.parametrize(
    ("deed", "code", "said"),
    [
        ("wrong", "output = output._replace(out=output.out * 1.001)", "a later call returned something else"),
        ("not a number", "output.out[0, 0, 0, 0] = float('nan')", "not finite"),
        ("writes", "q.data[0, 0, 0, 0] += 1", "writes to its inputs: q"),
    ],
)
def test_what_is_wrong_in_a_later_launch_gets_no_speed(
    tmp_path: Path, deed: str, code: str, said: str
) -> None:
    mark, file = tmp_path / "mark", tmp_path / "moody.py"
    file.write_text(LATER_WRONG.format(deed=deed, mark=str(mark), code=code), encoding="utf-8")
    case = Case.from_dict({**SMALL, "implementation": str(file)})
    first = measure_case(case, QUICK)
    assert first.status == "ok", first.reason
    assert first.agreement is not None
    mark.touch()
    context = {"out_crc32": first.agreement.out_crc32, "scratch": str(tmp_path)}
    record = record_from_dict(
        time_again_task(case.to_dict(), {"latency_budget_s": 0.02, "warmup_s": 0.0}, context)
    )
    assert record.status == "incorrect"
    assert said in (record.reason or "")
    assert record.latency is None


def test_another_rounding_is_graded_and_is_no_mistake(tmp_path: Path) -> None:
    case = Case.from_dict({**SMALL, "implementation": "sdpa"})
    record = time_again(case, QUICK, out_crc32=1, scratch=tmp_path)
    assert record.status == "ok"
    assert record.latency is not None


def test_without_a_truth_there_is_nothing_to_hold_it_to() -> None:
    record = time_again(Case.from_dict({**SMALL, "implementation": "sdpa"}), QUICK, out_crc32=None)
    assert record.status == "ok"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_bit_is_told(dtype: torch.dtype) -> None:
    out = torch.arange(24).to(dtype).view(2, 3, 4)
    other = out.clone()
    other[1, 2, 3] = (
        torch.nextafter(other[1, 2, 3], other.new_tensor(99.0)) if dtype != torch.bfloat16 else 23.125
    )
    assert crc32_of(out) == crc32_of(out.transpose(0, 1).contiguous().transpose(0, 1))
    assert crc32_of(out) != crc32_of(other)
