"""The table of pairs from what the devices made up for the back-ends say; and no row without its reason."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from attnbench.contract.cost import compulsory_read_bytes
from attnbench.device import cupti
from attnbench.device.hardware import CudaDevice
from attnbench.measure.cuda_memory import BACKEND as ALLOCATOR
from attnbench.measure.cuda_timer import CudaTimer
from attnbench.measure.cupti_timer import CuptiTimer
from attnbench.measure.dram import ncu, section
from attnbench.measure.dram.backend import ESTIMATE, DramBytes
from attnbench.measure.dram.choose import Choice
from attnbench.measure.latency import summarize
from attnbench.measure.record import Memory, Record, Traffic
from attnbench.measure.stopping import StoppingRule
from attnbench.measure.timing import Task, Timer, nothing
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.plan.suite import Suite
from attnbench.run.store import Run
from benchmarks import gpu_pairs
from benchmarks.cache_model import predict, predicted
from benchmarks.pair_table import KINDS, L2_MODEL, NO_RECORD, Figure, Runs, page, pairs_of
from tests.analysis.synthetic import META
from tests.measure.dram.fakes import put_on_path, small_job, writes
from tests.measure.fake_device import FakeCupti, FakeDevice, FakeStream
from tests.measure.test_cuda_memory import FakeAllocator, asked, workload_that_allocates

GPU = CudaDevice(0, "GPU-1", "NVIDIA H200", {"driver": "575.57", "compute_capability": "9.0"})
RULE = StoppingRule(min_samples=10, max_samples=10, budget_s=0.1)
KERNEL_NS = 40_000
NO_CUPTI = "cupti-activity, the only timer that was asked for: cupti-python is not installed"


def run_of(suite: Suite, records: list[Record]) -> Run:
    gpu = {"index": 0, "uuid": GPU.uuid, "name": GPU.name, "facts": GPU.facts}
    meta = {
        **META,
        "environment": {**META["environment"], "gpus": [gpu]},
        "measure": msgspec.to_builtins(suite.measure),
        "cases": {case.case_id: case.to_dict() for case in suite.cases},
    }
    return Run(path=Path("runs") / suite.name, meta=meta, records=records)


def blank(case: Case, **sections: Any) -> Record:
    return Record(case_id=case.case_id, case=case.to_dict(), status="ok", **sections)


def timed(timer: Timer, device: FakeDevice):
    task = Task(call=lambda: device.launch(KERNEL_NS), prepare=nothing, repeatable=True)
    return summarize(timer.time(task, RULE, 0.0), timer, ["valid"])


@pytest.fixture
def fake_cupti(monkeypatch) -> FakeDevice:
    device = FakeDevice()
    monkeypatch.setitem(sys.modules, "cupti.cupti", FakeCupti(device))
    monkeypatch.setattr(cupti, "version", lambda package: "13.4.0")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return device


def test_pairs_of_what_the_devices_made_up_say(tmp_path, monkeypatch, fake_cupti):
    put_on_path(tmp_path, "ncu", writes("ncu-elementwise.csv"), monkeypatch)
    counted_bytes = ncu.measure(small_job(), 30)
    plans = gpu_pairs.suites(None)
    by_records, by_events = CuptiTimer(FakeStream(fake_cupti), "cold", fake_cupti.clock), FakeDevice()
    activity = timed(by_records, fake_cupti)
    events = timed(CudaTimer(FakeStream(by_events), "cold", by_events.clock), by_events)
    least = compulsory_read_bytes(plans["traced"].cases[0].problem())

    def counted(case: Case, choice: Choice, **sections: Any) -> Record:
        record = blank(case, traffic=Traffic(), **sections)
        section.write(choice, record, record.traffic, least)
        return record

    estimate = DramBytes(total=2 * counted_bytes.total, note=ESTIMATE)
    allocator = FakeAllocator()
    memory, _ = asked(allocator, workload_that_allocates(allocator, 1 << 20))
    memory.predicted_peak_bytes = 3 * memory.peak_bytes
    by_ncu, by_gpm = Choice(counted_bytes, "ncu"), Choice(estimate, "nvml-gpm")
    runs = Runs(
        traced=run_of(plans["traced"], [counted(case, by_ncu) for case in plans["traced"].cases]),
        counted=run_of(
            plans["counted"],
            [counted(case, by_ncu, latency=activity, memory=memory) for case in plans["counted"].cases],
        ),
        estimated=run_of(
            plans["estimated"], [counted(case, by_gpm, latency=events) for case in plans["estimated"].cases]
        ),
    )
    model = Figure(L2_MODEL, 2 * counted_bytes.read, remark="H100 SXM, 50 MiB, 132 programs at a time")
    models = dict.fromkeys(runs.traced.planned, model)
    assert gpu_pairs.write(GPU.name, runs, models, tmp_path / "out") == 4 * 5 * 3
    ratios = {pair.kind: pair.ratio for pair in pairs_of(runs, models)}
    assert ratios["dram-read"] == 0.5
    assert ratios["dram-total"] == 2.0
    assert ratios["peak"] == 3.0
    assert activity.median_ms == pytest.approx(KERNEL_NS * 1e-6)
    assert ratios["latency"] == pytest.approx(activity.median_ms / events.median_ms)
    text = (tmp_path / "out" / "pairs.md").read_text(encoding="utf-8")
    assert "| sdpa | 8192 | 56.0 MiB | 112 MiB | 0.500 | L2 model: H100 SXM, 50 MiB" in text
    assert "| linear | 2048 | 183 MiB | 91.3 MiB | 2.000 | nvml-gpm: estimate |" in text
    assert "driver 575.57" in text


def test_what_does_not_work_has_a_row_and_a_reason(tmp_path):
    """Of each case and pair, whatever became of it: no counters, no timer, no memory, no record at all."""
    plans = gpu_pairs.suites(None)
    denied = {"traffic.dram_bytes": "ncu: the driver reserves counters for administrators"}
    cold = {"traffic.dram_bytes": "nvml-gpm: no GPU here offers GPM metrics"}
    whole = Memory(peak_bytes=100, predicted_peak_bytes=90, backend=ALLOCATOR)
    large = plans["counted"].cases
    no_room = Record(
        case_id=large[0].case_id,
        case=large[0].to_dict(),
        status="oom",
        reason="predicted to need 9 bytes",
        memory=Memory(predicted_peak_bytes=9, backend="tensor-lifetimes"),
    )
    told = [blank(case, memory=whole, unavailable={**denied, "latency": NO_CUPTI}) for case in large[1:-1]]
    runs = Runs(
        traced=run_of(plans["traced"], []),
        counted=run_of(plans["counted"], [no_room, *told]),
        estimated=run_of(plans["estimated"], [blank(case, unavailable=cold) for case in large]),
    )
    assert gpu_pairs.write(GPU.name, runs, {}, tmp_path) == len(told)
    plain = json.loads((tmp_path / "pairs.json").read_text(encoding="utf-8"))
    assert [kind["name"] for kind in plain["kinds"]] == [kind.name for kind in KINDS]
    rows = {(pair["kind"], pair["case_id"]): pair for pair in plain["pairs"]}
    assert len(rows) == len(plain["pairs"]) == 4 * 5 * 3
    for pair in plain["pairs"]:
        for side in (pair["first"], pair["second"]):
            assert (side["value"] is None) is bool(side["reason"]), pair
        assert (pair["ratio"] is None) is (None in (pair["first"]["value"], pair["second"]["value"]))
    first, middle, last = (large[place].case_id for place in (0, 1, -1))
    assert rows["peak", first]["first"]["value"] == 9
    assert rows["peak", first]["second"]["reason"] == "oom: predicted to need 9 bytes"
    assert rows["peak", middle]["ratio"] == 90 / 100
    assert rows["latency", middle]["first"]["reason"] == NO_CUPTI
    assert rows["dram-total", middle]["second"]["reason"] == "the driver reserves counters for administrators"
    assert rows["dram-total", middle]["first"]["reason"] == "no GPU here offers GPM metrics"
    assert rows["peak", last]["first"]["reason"] == NO_RECORD
    assert rows["dram-read", plans["traced"].cases[0].case_id]["first"]["reason"] == NO_RECORD
    assert {"environment", "versions", "revision", "runs", "device"} <= plain.keys()
    assert plain["environment"]["gpus"][0]["name"] == GPU.name
    assert plain["runs"]["estimated"]["measure"]["dram_backend"] == "nvml-gpm"
    text = page(GPU.name, runs, pairs_of(runs, {}))
    assert sum(line.startswith("| ") for line in text.splitlines()) == 4 * (2 + 15)


def test_a_figure_by_another_way_than_the_one_asked_for_is_none():
    case = gpu_pairs.suites(None)["counted"].cases[0]
    device = FakeDevice()
    events = timed(CudaTimer(FakeStream(device), "cold", device.clock), device)
    record = blank(case, latency=events, memory=Memory(peak_bytes=5, backend="tensor-lifetimes"))
    runs = Runs(*(run_of(plan, [record]) for plan in gpu_pairs.suites(None).values()))
    found = {pair.kind: pair for pair in pairs_of(runs, {}) if pair.case_id == case.case_id}
    assert found["latency"].first.reason == "it was timed by cuda-events"
    assert found["latency"].second.value == events.median_ms
    assert found["peak"].second.reason == "the peak is that of tensor-lifetimes"


def test_every_case_asked_for_is_one_that_its_implementation_takes():
    """On the CPU where that can be asked; sizes are those that a second of calls does not keep in a cache."""
    plans = gpu_pairs.suites(3)
    assert {name: len(plan.cases) for name, plan in plans.items()} == dict.fromkeys(plans, 15)
    assert {plan.device_index for plan in plans.values()} == {3}
    for case in plans["counted"].cases:
        assert case.batch * case.seqlen_q == gpu_pairs.TOKENS
        assert case.device == "cuda"
    assert gpu_pairs.target_of(GPU) == "sm_90"
    assert gpu_pairs.slug("NVIDIA GeForce RTX 4090") == "nvidia-geforce-rtx-4090"


def test_without_a_cuda_device_there_is_one_line_and_nothing_is_written(tmp_path, capsys):
    arguments = ["--output", str(tmp_path / "out"), "--runs", str(tmp_path / "runs"), "--record-samples"]
    for device in ("cuda", "cpu"):
        assert gpu_pairs.main([*arguments, "--device", device]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert len(said.err.splitlines()) == 1
        assert said.err.startswith("gpu-pairs: ")
    assert list(tmp_path.iterdir()) == []


def test_a_torch_without_cuda_beside_a_gpu_is_named(monkeypatch, capsys):
    monkeypatch.setattr(gpu_pairs, "require_device", lambda device: GPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_pairs.main([]) == 2
    assert "can't use the NVIDIA H200" in capsys.readouterr().err


def test_the_model_reads_what_is_compulsory_where_all_of_it_fits():
    case = Case(implementation="triton-flash", seqlen_q=128, num_heads=1, dtype="float16", device="cuda")
    figure = predict(case, "sm_90")
    least = compulsory_read_bytes(case.problem())
    assert figure.reason is None
    assert least == 3 * 128 * 64 * 2
    assert figure.value == least + 32, "and one sector, of two numbers a batch row"
    assert figure.remark == "H100 SXM5 80 GB, 50 MiB, 132 programs at a time"


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("naive", "sm_90", "on the CPU naive runs no kernel that Triton interprets"),
        ("triton-flash", "gfx942", "gfx942 has more than one L2 cache; the model is of one"),
        ("triton-flash", "sm_75", "unknown target 'sm_75'"),
    ],
)
def test_what_the_model_can_t_say_is_a_reason(name, target, reason):
    figure = predict(Case(implementation=name, seqlen_q=16, dtype="float16"), target)
    assert figure.value is None
    assert reason in figure.reason


def on_cpu(suite: Suite) -> Suite:
    small = partial(msgspec.structs.replace, device="cpu", batch=1, seqlen_q=64, seqlen_k=64)
    chosen = [small(case) for case in suite.cases if case.implementation in ("linear", "triton-flash")]
    measure: MeasureSettings = msgspec.structs.replace(suite.measure, launches=1, latency_budget_s=0.05)
    return replace(suite, cases=tuple(chosen[:2]), measure=measure)


@pytest.mark.long
def test_the_real_runs_make_the_table_on_a_machine_without_any_back_end(tmp_path):
    """A CPU in the GPU's place: everything is there, and nothing is compared but for what it lacks."""
    plans = {name: on_cpu(suite) for name, suite in gpu_pairs.suites(None).items()}
    runs = gpu_pairs.measured(plans, tmp_path / "runs")
    again = gpu_pairs.measured(plans, tmp_path / "runs")
    assert again.counted.records == runs.counted.records, "what is there is not measured again"
    models = gpu_pairs.modelled(runs.traced, "sm_90")
    assert gpu_pairs.write("a CPU", runs, models, tmp_path) == 0
    plain = json.loads((tmp_path / "pairs.json").read_text(encoding="utf-8"))
    assert len(plain["pairs"]) == 4 * 2
    assert plain["environment"]["cpu"]["model"]
    found = {(pair["kind"], pair["implementation"]): pair for pair in plain["pairs"]}
    assert found["dram-read", "triton-flash"]["second"]["value"] == 3 * 64 * 64 * 2 + 32
    assert "no kernel" in found["dram-read", "linear"]["second"]["reason"]
    assert "this case ran on the CPU" in found["dram-read", "linear"]["first"]["reason"]
    assert found["latency", "linear"]["first"]["reason"] == "it was timed by perf_counter"
    assert found["peak", "linear"]["first"]["value"] > 0
    assert found["peak", "linear"]["second"]["reason"] == "the peak is that of tensor-lifetimes"


@pytest.mark.long
def test_a_model_that_takes_too_long_is_given_up():
    case = Case(implementation="triton-flash", seqlen_q=128, num_heads=1, dtype="float16")
    figure = predicted(case, "sm_90", 0.2)
    assert figure.value is None
    assert "did not end within" in figure.reason
