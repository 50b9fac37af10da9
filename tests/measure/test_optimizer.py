"""The optimiser's step: what it keeps, that it leaves the weights alone, and where there is one."""

import dataclasses
from typing import Any

import pytest
import torch

from attnbench.measure.cpu_timer import CpuTimer
from attnbench.measure.ladder import Ladder
from attnbench.measure.optimizer import measure_optimizer
from attnbench.measure.pipeline import measure_case
from attnbench.measure.stopping import StoppingRule
from attnbench.measure.timing import Task, Timing
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from tests.measure.fake_device import FakeDevice, ladder

NO_COPIES = "only the forward call of an attention is captured"
QUICK = MeasureSettings(metrics=("latency", "optimizer"), latency_budget_s=0.02, warmup_s=0.0, min_samples=3)


def case(**keys: Any) -> Case:
    form = {"implementation": "sdpa", "level": "model", "preset": "tiny", "mode": "fwd_bwd", "seqlen_q": 16}
    return Case.from_dict({**form, **keys})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_keeps_two_moments_of_every_weight_and_a_count(dtype: str) -> None:
    workload = build_workload(case(dtype=dtype))
    model: Any = workload.module
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    missing: dict[str, str] = {}
    section = measure_optimizer(workload, QUICK, missing)
    assert (section.timer, missing) == ("perf_counter", {})
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


def test_it_says_which_timer_it_was_and_why_no_better_one() -> None:
    """As a latency does: on a GPU without CUPTI, where only forward calls of an attention are captured."""
    device = FakeDevice()

    class Launching(Ladder):
        def time(self, task: Task, rule: StoppingRule, warmup_s: float) -> Timing:
            call = dataclasses.replace(task, call=lambda: device.launch(duration_ns))
            return super().time(call, rule, warmup_s)

    workload = build_workload(case())
    for duration_ns, others in ((300_000, {}), (4_000, {"optimizer_step.cuda-graph": NO_COPIES})):
        missing: dict[str, str] = {}
        plain = ladder(device)
        timer = Launching(plain.activity, plain.graph, plain.events)
        section = measure_optimizer(workload, QUICK, missing, timer=timer)
        assert section.timer == "cuda-events"
        assert section.median_ms == pytest.approx(duration_ns * 1e-6, rel=0.3)
        assert missing == {"optimizer_step.cupti-activity": "cupti-python is not installed", **others}


def test_a_step_too_short_for_the_clock_has_no_time_and_says_so() -> None:
    missing: dict[str, str] = {}
    still = CpuTimer(clock=lambda: 0)
    section = measure_optimizer(build_workload(case()), QUICK, missing, timer=still)
    assert section.median_ms is None
    assert missing == {"optimizer_step.median_ms": "too short for the timer perf_counter"}


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
