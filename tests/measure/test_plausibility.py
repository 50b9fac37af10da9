"""A latency that beats a ceiling is measured again, and then called implausible with the arithmetic."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from attnbench.contract.cost import compulsory_bytes, useful_flops
from attnbench.contract.masks import Full
from attnbench.measure import ceiling_calls
from attnbench.measure import ceilings as ceilings_module
from attnbench.measure.ceilings import Ceilings
from attnbench.measure.pipeline import measure_case
from attnbench.measure.plausibility import measure_plausible_latency
from attnbench.measure.record import Flops, Record, Share, record_from_dict
from attnbench.measure.timing import Timing
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

THREADS = torch.get_num_threads()
SETTINGS = MeasureSettings()


@dataclass
class Told:
    """A timer that tells the next of the latencies it was given, in ms; the last one again and again."""

    medians_ms: list[float]
    cache: str = "warm"
    name: str = "told"
    asked: int = 0

    def time(self, task, rule, warmup_s) -> Timing:
        median_ms = self.medians_ms[min(self.asked, len(self.medians_ms) - 1)]
        self.asked += 1
        return Timing(samples_ms=[median_ms] * 30, first_call_s=0.0, below_resolution=False)


@dataclass
class Again:
    """Measures ceilings anew: what it was told."""

    found: Ceilings
    devices: list[torch.device] = field(default_factory=list)

    def __call__(self, device: torch.device) -> Ceilings:
        self.devices.append(device)
        return self.found


def ceilings(**changes) -> Ceilings:
    given = {"name": "a processor", "threads": THREADS, "verdict": ["valid"], "cache_bytes": 0}
    return Ceilings(**{**given, **changes})


def judged(case, ceiling, *medians_ms, cache="warm", again=None, **sections):
    workload = build_workload(case)
    record = Record(case_id=case.case_id, case=case.to_dict(), status="ok", **sections)
    timer = Told(list(medians_ms), cache)
    again = again or Again(Ceilings())
    record.latency, _ = measure_plausible_latency(
        workload, SETTINGS, record=record, ceilings=ceiling, timer=timer, again=again
    )
    return record, timer, again


CASE = Case(implementation="sdpa", seqlen_q=64, num_heads=1)
FLOPS = useful_flops(CASE.problem())
RATE = FLOPS * 1e3
"""At which the case takes 1 ms."""
FAST = ceilings(matmul_flops_per_s={"float32": RATE})


def test_what_beats_no_ceiling_is_measured_once_and_has_its_floor():
    record, timer, again = judged(CASE, FAST, 2.0)
    assert timer.asked == 1
    assert again.devices == []
    assert record.latency.floor_ms == pytest.approx(1.0)
    assert "implausible" not in record.latency.verdict
    assert record.latency.implausible is None


@pytest.mark.parametrize(("median_ms", "asked"), [(0.96, 1), (0.94, 2)])
def test_5_percent_are_forgiven(median_ms, asked):
    """1 / 0.96 = 1.042 times the ceiling, 1 / 0.94 = 1.064 times."""
    record, timer, _ = judged(CASE, FAST, median_ms)
    assert timer.asked == asked
    assert ("implausible" in record.latency.verdict) == (asked == 2)


def test_what_still_beats_it_is_implausible_with_the_arithmetic():
    record, timer, again = judged(CASE, FAST, 0.5, 0.25)
    assert timer.asked == 2, "once more and no oftener"
    assert again.devices == [torch.device("cpu")], "and the ceilings with it"
    assert record.latency.median_ms == 0.25, "the second measurement stands"
    assert "implausible" in record.latency.verdict
    assert record.latency.floor_ms == pytest.approx(1.0)
    assert FLOPS == 64 * 65 // 2 * 4 * 64 == 532480
    assert record.latency.implausible == (
        "0.25 ms for at least 532 kFLOP is 2.13 GFLOP/s, "
        "4.00 times the 532 MFLOP/s measured of products in float32"
    )
    assert record_from_dict(record.to_dict()).latency.implausible == record.latency.implausible
    assert record.status == "ok"


def test_a_disturbed_measurement_is_forgotten():
    record, timer, _ = judged(CASE, FAST, 0.5, 2.0)
    assert timer.asked == 2
    assert record.latency.median_ms == 2.0
    assert "implausible" not in record.latency.verdict
    assert record.latency.implausible is None


def test_a_ceiling_that_was_too_low_is_raised():
    """The ceiling is measured again too: it may have been what was disturbed."""
    again = Again(ceilings(matmul_flops_per_s={"float32": 2.5 * RATE}))
    record, _, _ = judged(CASE, FAST, 0.5, 0.4, again=again)
    assert "implausible" not in record.latency.verdict
    assert record.latency.floor_ms == pytest.approx(0.4)


def test_a_float32_case_is_not_held_against_products_of_another_type():
    only_half = ceilings(matmul_flops_per_s={"float16": RATE, "bfloat16": RATE})
    record, timer, _ = judged(CASE, only_half, 0.1)
    assert timer.asked == 1
    assert record.latency.floor_ms is None
    assert record.unavailable["latency.floor_ms"] == "no measured ceiling bounds this call"
    half = replace_case(dtype="float16")
    record, timer, _ = judged(half, FAST, 0.1)
    assert timer.asked == 1, "float16 was not measured: float32's rate says nothing about it"


def test_products_may_be_computed_in_a_type_as_accurate():
    """A processor that emulates 16 bit is slower at it than at float32, which a kernel may then use."""
    both = ceilings(matmul_flops_per_s={"float16": RATE / 10, "float32": RATE})
    record, _, _ = judged(replace_case(dtype="float16"), both, 1.0)
    assert record.latency.floor_ms == pytest.approx(1.0)
    tensor_cores = ceilings(matmul_flops_per_s={"float32": RATE, "tf32": 9 * RATE})
    record, _, _ = judged(CASE, tensor_cores, 1.0)
    assert record.latency.floor_ms == pytest.approx(1 / 3), (
        "three TF32 products make one of float32's accuracy"
    )
    faster_half = ceilings(matmul_flops_per_s={"float32": RATE, "bfloat16": 9 * RATE})
    record, _, _ = judged(CASE, faster_half, 1.0)
    assert record.latency.floor_ms == pytest.approx(1.0)


def replace_case(**changes) -> Case:
    return Case(**{"implementation": "sdpa", "seqlen_q": 64, "num_heads": 1, **changes})


def memory(**changes) -> Ceilings:
    """A bandwidth at which all compulsory bytes of the case take 1 ms."""
    return ceilings(read_bytes_per_s=compulsory_bytes(CASE.problem()) * 1e3, **changes)


def test_bytes_bound_a_cold_call_but_for_what_it_writes():
    total, out = compulsory_bytes(CASE.problem()), 64 * 64 * 4
    assert total == 4 * out
    record, _, _ = judged(CASE, memory(cache_bytes=1 << 30), 2.0, cache="cold")
    assert record.latency.floor_ms == pytest.approx(0.75), "the output may stay in the cache"
    record, _, _ = judged(CASE, memory(cache_bytes=out // 2), 2.0, cache="cold")
    assert record.latency.floor_ms == pytest.approx(0.875), "as much of it as there is room for"
    record, _, _ = judged(CASE, memory(cache_bytes=1 << 30), 0.1, cache="cold")
    assert "implausible" in record.latency.verdict
    assert record.latency.implausible.endswith("measured of memory")


def test_a_warm_cache_may_beat_the_memory():
    record, timer, _ = judged(CASE, memory(cache_bytes=1 << 30), 0.01)
    assert timer.asked == 1
    assert record.latency.floor_ms is None
    record, _, _ = judged(CASE, memory(cache_bytes=64 * 64 * 4), 2.0)
    assert record.latency.floor_ms == pytest.approx(0.75), "but not for what it has no room for"


def test_the_highest_bound_counts():
    both = memory(matmul_flops_per_s={"float32": RATE / 2})
    record, _, _ = judged(CASE, both, 3.0)
    assert record.latency.floor_ms == pytest.approx(2.0)


@pytest.mark.parametrize("mode", ["bwd", "fwd_bwd"])
def test_a_backward_pass_needs_its_own_products(mode):
    factor = {"bwd": 2, "fwd_bwd": 3}[mode]
    record, _, _ = judged(replace_case(mode=mode), FAST, 10.0)
    assert record.latency.floor_ms == pytest.approx(factor)


def test_of_a_model_all_its_layers_and_what_is_outside_its_mixers_count():
    case = Case(level="model", implementation="sdpa", preset="small-decoder", seqlen_q=64)
    workload = build_workload(case)
    of_attentions = sum(one.layers * one.cost.flops for one in workload.attentions)
    sections = {"flops": Flops(executed=10_000_000), "share": Share(flops_fraction=0.25)}
    record, _, _ = judged(case, FAST, 1e6, **sections)
    assert record.latency.floor_ms == pytest.approx((of_attentions + 7_500_000) / RATE * 1e3)
    record, _, _ = judged(case, FAST, 1e6)
    assert record.latency.floor_ms == pytest.approx(of_attentions / RATE * 1e3)


TOYS = Path(__file__).parents[1] / "toys"


def test_what_stands_in_for_softmax_is_held_against_its_own_work():
    case = replace_case(implementation=str(TOYS / "low_rank.py"), seqlen_q=256, mask=Full().to_dict())
    cost = build_workload(case).attentions[0].cost
    assert cost.executed_flops < cost.flops
    record, _, _ = judged(case, FAST, 1e6)
    assert record.latency.floor_ms == pytest.approx(cost.executed_flops / RATE * 1e3)


def test_a_state_is_less_to_read_than_a_cache():
    case = replace_case(implementation="linear", mode="decode", seqlen_q=1, seqlen_k=4096)
    cost = build_workload(case).attentions[0].cost
    assert cost.compulsory_bytes < compulsory_bytes(case.problem())
    record, _, _ = judged(case, ceilings(read_bytes_per_s=1e9), 1e6)
    assert record.latency.floor_ms == pytest.approx(cost.compulsory_bytes / 1e9 * 1e3)
    room = ceilings(read_bytes_per_s=1e9, cache_bytes=1 << 30)
    record, _, _ = judged(case, room, 1e6, cache="cold")
    state_bytes, token_bytes = 65 * 64 * 4, 64 * 4
    assert cost.compulsory_bytes == 2 * state_bytes + 4 * token_bytes
    to_read = state_bytes + 3 * token_bytes
    assert record.latency.floor_ms <= to_read / 1e9 * 1e3, "the state that is written may stay in the cache"
    assert record.latency.floor_ms == pytest.approx(to_read / 1e9 * 1e3, rel=0.02)


IDLE = """
from dataclasses import replace
from attnbench.contract.discovery import get_implementation

kept = {}
honest = get_implementation("naive")

def attention(q, k, v, *, problem, params=None):
    key = (q.data_ptr(), problem)
    if key not in kept:
        kept[key] = honest.attention(q, k, v, problem=problem)
    return kept[key]

IMPLEMENTATION = replace(honest, name="idle", attention=attention)
"""


def test_a_kernel_that_keeps_its_result_is_found_out(tmp_path, monkeypatch):
    """It is right, and agrees; but no CPU does a quarter of a gigaflop while it looks into a table."""
    monkeypatch.setattr(ceiling_calls, "PRODUCT_SIZES", {"cpu": (512,)})
    monkeypatch.setattr(ceiling_calls, "LEAST_BUFFER_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(ceilings_module, "last_level_cache_bytes", lambda: 1 << 20)
    (tmp_path / "idle.py").write_text(IDLE, encoding="utf-8")
    case = Case(implementation=str(tmp_path / "idle.py"), seqlen_q=1024, num_heads=1, mask=Full().to_dict())
    settings = MeasureSettings(metrics=("latency",), latency_budget_s=0.05, warmup_s=0.0)
    known = ceilings(matmul_flops_per_s={"float32": 1e11})
    record = measure_case(case, settings, ceilings=known)
    assert (record.status, record.agreement.verdict) == ("ok", "ok")
    assert "implausible" in record.latency.verdict
    assert "268 MFLOP" in record.latency.implausible


@pytest.mark.parametrize(
    ("ceiling", "reason"),
    [
        (ceilings(threads=THREADS + 1), f"the ceilings are those of {THREADS + 1} threads, not of {THREADS}"),
        (ceilings(verdict=["shared"]), "other processes disturbed the measurement of the ceilings"),
        (Ceilings(unavailable={"ceilings": "TimeoutError"}), "TimeoutError"),
        (ceilings(), "no measured ceiling bounds this call"),
    ],
)
def test_ceilings_that_say_nothing_accuse_nobody(ceiling, reason):
    if ceiling.name is not None and reason != "no measured ceiling bounds this call":
        ceiling = ceiling.or_faster(FAST)
    record, timer, _ = judged(CASE, ceiling, 1e-6)
    assert timer.asked == 1
    assert record.latency.floor_ms is None
    assert record.unavailable["latency.floor_ms"] == reason


def test_without_ceilings_nothing_is_said():
    record, timer, _ = judged(CASE, None, 1e-6)
    assert timer.asked == 1
    assert record.latency.floor_ms is None
    assert record.unavailable == {}
