"""Every field of a record is filled, or says why not, or is none of this kind of case; so is `run.json`.

On a real run of small cases on the CPU, and for what only a GPU tells with a made-up one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from attnbench.measure import telemetry
from attnbench.measure.cuda_memory import ask_allocator
from attnbench.measure.energy import measure_energy
from attnbench.measure.record import Memory, Record, Telemetry
from attnbench.measure.telemetry import OF_A_GPU, observe, why_lacking
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import METRICS, MeasureSettings
from attnbench.plan.suite import Suite
from attnbench.run.runner import run_suite
from attnbench.run.store import Run
from tests.device.fake_nvml import UUID, Card, install
from tests.measure.test_cuda_memory import FakeAllocator
from tests.measure.test_energy import FakeBoard, workload_on

FIELDS = {
    "latency": "median_ms p10_ms p90_ms ci95_low_ms ci95_high_ms samples_ms launches timer cache verdict "
    "compile_s",
    "memory": "peak_bytes peak_increment_bytes predicted_peak_bytes reserved_bytes hidden_workspace_bytes "
    "process_bytes state_bytes backend",
    "traffic": "compulsory_bytes operand_bytes operand_backend requested_bytes requested_backend dram_bytes "
    "dram_backend",
    "flops": "useful dense executed exponentials",
    "agreement": "max_abs_error rms_relative_error budget budget_used verdict lse gradients softmax_distance "
    "inputs rows_checked",
    "share": "latency_fraction memory_fraction flops_fraction",
    "quality": "loss perplexity",
    "theory": "flops executed_flops exponentials compulsory_bytes operand_bytes requested_bytes peak_bytes",
    "telemetry": "sm_clock_mhz memory_clock_mhz power_w temperature_c throttle_reasons energy_per_call_j "
    "other_processes context_switches",
    "provenance": "kernels backend autotune cross_implementation source_hash seed threads started_utc "
    "reproduce",
}
NAMES = [("kernels", ""), *((section, name) for section in FIELDS for name in FIELDS[section].split())]
ALWAYS = ("seed", "threads", "started_utc", "reproduce")
"""Provenance of a case that ended in any way."""

NONE_OF_THIS_CASE: dict[str, Callable[[Record], bool]] = {
    "latency.compile_s": lambda record: record.case["device"] == "cpu" and not record.case["compile"],
    "memory.state_bytes": lambda record: record.case["mode"] != "decode",
    "traffic.operand_backend": lambda record: record.traffic.operand_bytes is None,
    "traffic.requested_backend": lambda record: record.traffic.requested_bytes is None,
    "traffic.dram_backend": lambda record: record.traffic.dram_bytes is None,
    "agreement.lse": lambda record: not record.case["options"].get("return_lse"),
    "agreement.gradients": lambda record: record.case["mode"] in ("fwd", "decode"),
    "agreement.softmax_distance": lambda record: record.provenance.semantics == "softmax",
    "share": lambda record: record.case["level"] == "attention",
    "quality": lambda record: record.case["level"] != "model",
    "kernels": lambda record: record.provenance.kernels == [],
}
SMALL: dict[str, Any] = {"num_heads": 2, "head_dim": 16, "seqlen_q": 24}
CASES = {
    "forward": Case(implementation="sdpa", **SMALL),
    "backward": Case(implementation="naive", mode="fwd_bwd", options={"return_lse": True}, **SMALL),
    "interpreted": Case(implementation="triton-flash", **SMALL),
    "decoding": Case.from_dict(
        SMALL | {"implementation": "linear", "mode": "decode", "seqlen_q": 1, "seqlen_k": 24}
    ),
    "translator": Case.from_dict(
        {"implementation": "naive", "level": "model", "preset": "tiny-translator", "seqlen_q": 12}
    ),
    "unsupported": Case(implementation="triton-flash", dtype="float64", **SMALL),
    "broken": Case(implementation="no-such-file.py", **SMALL),
}
MEASURE = MeasureSettings(
    metrics=METRICS, launches=1, latency_budget_s=0.02, warmup_s=0.0, min_samples=3, case_timeout_s=60
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("fields")
    suite = Suite(
        name="fields",
        description="one case of each kind",
        cases=tuple(CASES.values()),
        measure=MEASURE,
        source="fields.toml",
        text='name = "fields"',
    )
    return run_suite(suite, output=folder / "run", isolate="none")


@pytest.fixture(scope="module")
def records(run: Run) -> dict[str, Record]:
    by_id = {record.case_id: record for record in run.records}
    return {kind: by_id[case.case_id] for kind, case in CASES.items()}


def unexplained(record: Record) -> Iterator[str]:
    """Names of fields that are empty without a reason."""
    plain = record.to_dict()
    for section, name in NAMES:
        full = f"{section}.{name}" if name else section
        value = plain.get(section) if not name else (plain.get(section) or {}).get(name)
        reasons = {full, section} & record.unavailable.keys()
        absent = [key for key in (full, section) if key in NONE_OF_THIS_CASE]
        if value is None and not reasons and not any(NONE_OF_THIS_CASE[key](record) for key in absent):
            yield full


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind not in ("unsupported", "broken")])
def test_every_field_is_filled_or_says_why_not(records, kind):
    record = records[kind]
    assert record.status == "ok", record.reason
    assert list(unexplained(record)) == []
    assert all(record.unavailable.values())


@pytest.mark.parametrize(("kind", "status"), [("unsupported", "unsupported"), ("broken", "error")])
def test_a_case_without_a_result_says_why_and_how_to_try_it_again(records, kind, status):
    record = records[kind]
    assert record.status == status
    assert record.reason
    for name in ALWAYS:
        assert getattr(record.provenance, name) is not None, name


def test_what_a_reason_would_hide_is_there(records):
    """A reason is no excuse where the value can be had."""
    assert records["forward"].provenance.backend == "flash (CPU)"
    assert records["forward"].provenance.kernels == []
    assert records["forward"].provenance.autotune == {}
    assert len(records["forward"].provenance.source_hash) == 16
    assert records["interpreted"].provenance.kernels == ["flash_forward_kernel"]
    assert set(records["interpreted"].provenance.autotune["attention"]) == {"forward"}
    assert "attnbench kernels triton-flash" in records["interpreted"].unavailable["kernels"]
    assert records["translator"].provenance.cross_implementation == "naive"
    assert records["decoding"].memory.state_bytes > 0
    assert records["decoding"].agreement.softmax_distance > 0
    assert records["backward"].agreement.lse.verdict == "ok"
    assert records["backward"].telemetry.context_switches is not None


def test_run_json_says_what_ran_on_what_from_which_source(run):
    meta = run.meta
    for name in (
        "suite",
        "cases",
        "measure",
        "environment",
        "ceilings",
        "versions",
        "started_utc",
        "finished_utc",
    ):
        assert meta[name], name
    assert meta["ceilings"]["cpu"]["copy_bytes_per_s"] > 0
    assert {"python", "torch", "triton", "attnbench"} <= meta["versions"].keys()
    assert meta["threads"] >= 1
    for name in ("command", "revision.attnbench", "revision.working_directory", "environment.cpu_governor"):
        value: Any = meta
        for part in name.split("."):
            value = value[part]
        assert (value is None) == (name in meta["unavailable"]), name
    assert meta["unavailable"]["command"] == "started from Python, by attnbench.run_suite"
    assert meta["launches"][0]["unavailable"] == meta["unavailable"]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    install(monkeypatch, card)
    monkeypatch.setattr(telemetry, "uuid_of", lambda device: UUID)
    return card


def watched(device: torch.device) -> Telemetry:
    with observe(device) as seen:
        seen.settled()
    return seen.section()


def test_a_gpu_fills_every_field_of_its_own(card):
    """The same table, for what a CPU has not: readings of a card, of an allocator, of an energy counter."""
    cuda = torch.device("cuda")
    missing: dict[str, str] = {}
    section = watched(cuda)
    assert why_lacking(section, cuda) == {}
    board, memory = FakeBoard(), Memory()
    section.energy_per_call_j = measure_energy(workload_on(board), missing, meter=board.meter())
    ask_allocator(build_workload(CASES["forward"]), memory, missing, allocator=FakeAllocator().functions())
    assert missing == {}
    for name in FIELDS["telemetry"].split():
        assert getattr(section, name) is not None, name
    for name in ("peak_bytes", "peak_increment_bytes", "reserved_bytes", "process_bytes", "backend"):
        assert getattr(memory, name) is not None, name


def test_a_gpu_that_tells_nothing_is_said_to(card):
    card.sm_clock_mhz = card.memory_clock_mhz = card.power_mw = card.temperature_c = None
    card.energy_mj = card.processes = None
    card.throttled_ns = {}
    cuda = torch.device("cuda")
    missing: dict[str, str] = {}
    section = watched(cuda)
    assert why_lacking(section, cuda) == {
        f"telemetry.{name}": "this GPU does not tell it" for name in OF_A_GPU
    }
    board = FakeBoard(counts=False)
    assert measure_energy(workload_on(board), missing, meter=board.meter()) is None
    assert "does not count its energy" in missing["telemetry.energy_per_call_j"]
    allocator = FakeAllocator(process="NVML does not list the processes of this GPU").functions()
    ask_allocator(build_workload(CASES["forward"]), Memory(), missing, allocator=allocator)
    assert missing["memory.process_bytes"] == "NVML does not list the processes of this GPU"


def test_without_a_driver_that_is_the_reason(monkeypatch):
    monkeypatch.setattr(telemetry, "uuid_of", lambda device: UUID)
    monkeypatch.setattr(telemetry, "unavailable_reason", lambda: "no NVIDIA driver: Driver Not Loaded")
    monkeypatch.setattr(telemetry, "gpu_state", lambda uuid: None)
    cuda = torch.device("cuda")
    reasons = why_lacking(watched(cuda), cuda)
    assert set(reasons.values()) == {"no NVIDIA driver: Driver Not Loaded"}
    assert len(reasons) == len(OF_A_GPU)
