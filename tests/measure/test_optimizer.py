"""The optimiser's step: what it keeps, that it leaves the weights alone, and where there is one."""

from typing import Any

import pytest
import torch

from attnbench.measure.optimizer import measure_optimizer
from attnbench.measure.pipeline import measure_case
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

QUICK = MeasureSettings(metrics=("latency", "optimizer"), latency_budget_s=0.02, warmup_s=0.0, min_samples=3)


def case(**keys: Any) -> Case:
    form = {"implementation": "sdpa", "level": "model", "preset": "tiny", "mode": "fwd_bwd", "seqlen_q": 16}
    return Case.from_dict({**form, **keys})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_keeps_two_moments_of_every_weight_and_a_count(dtype: str) -> None:
    workload = build_workload(case(dtype=dtype))
    model: Any = workload.module
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    section = measure_optimizer(workload, QUICK)
    weights = model.param_count * getattr(torch, dtype).itemsize
    assert section.state_bytes == 2 * weights + 4 * len(before)
    assert section.name == "AdamW"
    assert section.median_ms is not None
    assert section.ci95_low_ms is not None
    assert section.ci95_high_ms is not None
    assert 0 < section.ci95_low_ms <= section.median_ms <= section.ci95_high_ms
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.grad is None


@pytest.mark.parametrize(
    ("keys", "has_one"),
    [({}, True), ({"mode": "fwd"}, False), ({"mode": "bwd"}, False), ({"level": "block"}, False)],
)
def test_it_belongs_to_the_training_of_a_model(keys: dict[str, Any], has_one: bool) -> None:
    record = measure_case(case(**keys), QUICK)
    assert record.status == "ok"
    assert (record.optimizer_step is not None) == has_one
    assert "optimizer_step" not in record.unavailable


def test_a_wrong_result_has_none() -> None:
    record = measure_case(case(), QUICK)
    assert record.optimizer_step is not None
    record.forget_speed()
    assert record.optimizer_step is None
