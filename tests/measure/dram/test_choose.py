"""The first backend that works is used, none costs the record anything, and no lost cause is tried again."""

import time
from types import SimpleNamespace

import pytest

from attnbench.device.requirements import Finding
from attnbench.measure.dram import choose as choosing
from attnbench.measure.dram.backend import BackendError, DramBytes, HungError
from attnbench.measure.dram.choose import BACKENDS, LIMIT_S, choose
from attnbench.measure.dram.section import write
from attnbench.measure.record import Provenance, Record, Traffic
from tests.measure.dram.fakes import small_job

FOUND = DramBytes(total=30, read=20, write=10, kernels=(("k", DramBytes(total=30, read=20, write=10)),))


class Fake:
    def __init__(self, name, outcome=FOUND, finding=None):
        self.NAME, self.outcome, self.finding = name, outcome, finding or Finding(True, "")
        self.limits: list[float] = []

    def probe(self):
        if isinstance(self.finding, Exception):
            raise self.finding
        return self.finding

    def measure(self, job, timeout_s):
        self.limits.append(timeout_s)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def soon() -> float:
    return time.monotonic() + 1000


def test_the_order():
    assert [backend.NAME for backend in BACKENDS] == ["ncu", "cupti-pm", "rocprofv3", "nvml-gpm"]


def test_the_first_that_works_is_used_and_the_others_are_named():
    last = Fake("last")
    backends = [
        Fake("absent", finding=Finding(False, "not on PATH", "install it")),
        Fake("garbled", finding=UnicodeError("a name in no encoding")),
        Fake("refused", BackendError("forbidden")),
        Fake("broken", ZeroDivisionError("division by zero")),
        Fake("good"),
        last,
    ]
    choice = choose(small_job(), soon(), backends=backends)
    assert (choice.found, choice.backend) == (FOUND, "good")
    assert choice.passed_over == {
        "absent": "not on PATH; what helps: install it",
        "garbled": "UnicodeError: a name in no encoding",
        "refused": "forbidden",
        "broken": "ZeroDivisionError: division by zero",
    }
    assert last.limits == []


def test_a_backend_gets_no_more_than_is_left():
    roomy, tight, late = Fake("roomy"), Fake("tight"), Fake("late")
    choose(small_job(), soon(), backends=[roomy])
    choose(small_job(), time.monotonic() + 20, backends=[tight])
    choice = choose(small_job(), time.monotonic() + 1, backends=[late])
    assert roomy.limits == [LIMIT_S]
    assert 0 < tight.limits[0] <= 20
    assert late.limits == []
    assert "time limit" in choice.passed_over["late"]


def test_what_fails_for_good_is_tried_once_a_run(tmp_path):
    forbidden = Fake("a", BackendError("forbidden", "allow it", lasting=True))
    once = Fake("b", BackendError("out of memory"))
    for _ in range(3):
        choice = choose(small_job(), soon(), notes=tmp_path / "dram", backends=[forbidden, once])
        assert choice.passed_over == {"a": "forbidden; what helps: allow it", "b": "out of memory"}
    assert (len(forbidden.limits), len(once.limits)) == (1, 3)


def test_what_hangs_gets_a_second_chance_and_no_third(tmp_path):
    hanging = Fake("a", HungError("did not end"))
    for _ in range(4):
        choice = choose(small_job(), soon(), notes=tmp_path, backends=[hanging])
        assert choice.passed_over == {"a": "did not end"}
    assert len(hanging.limits) == 2


def test_notes_that_can_not_be_written_cost_nothing(tmp_path):
    (tmp_path / "file").touch()
    choice = choose(
        small_job(),
        soon(),
        notes=tmp_path / "file",
        backends=[Fake("a", BackendError("forbidden", lasting=True)), Fake("b")],
    )
    assert choice.backend == "b"


def record() -> Record:
    reasons = {"traffic.dram_bytes": "not yet"}
    return Record(
        case_id="c", case={}, status="ok", traffic=Traffic(), provenance=Provenance(), unavailable=reasons
    )


def test_a_record_says_what_was_counted_by_whom_and_why_not_by_others():
    filled = record()
    choice = choose(small_job(), soon(), backends=[Fake("a", BackendError("forbidden")), Fake("b")])
    write(choice, filled, filled.traffic, least_read_bytes=20)
    assert filled.traffic == Traffic(
        dram_bytes=30,
        dram_backend="b",
        dram_read_bytes=20,
        dram_write_bytes=10,
        dram_kernels=[{"kernel": "k", "bytes": 30, "read_bytes": 20, "write_bytes": 10}],
        dram_verdict="valid",
    )
    assert filled.provenance.dram_passed_over == {"a": "forbidden"}
    assert filled.unavailable == {}


def test_an_estimate_is_called_one():
    filled = record()
    estimate = Fake("nvml-gpm", DramBytes(total=30, note="estimate"))
    write(choose(small_job(), soon(), backends=[estimate]), filled, filled.traffic, least_read_bytes=20)
    assert filled.traffic == Traffic(
        dram_bytes=30, dram_backend="nvml-gpm (estimate)", dram_verdict="estimate"
    )


def test_fewer_reads_than_have_to_be_are_implausible():
    filled = record()
    write(choose(small_job(), soon(), backends=[Fake("a")]), filled, filled.traffic, least_read_bytes=40)
    assert filled.traffic.dram_verdict == "implausible"
    assert filled.traffic.dram_bytes == 30


def test_without_any_backend_the_record_keeps_all_reasons():
    filled = record()
    backends = [Fake("a", BackendError("forbidden")), Fake("b", finding=Finding(False, "no GPU"))]
    write(choose(small_job(), soon(), backends=backends), filled, filled.traffic, least_read_bytes=20)
    assert filled.unavailable == {"traffic.dram_bytes": "a: forbidden; b: no GPU"}
    assert filled.traffic == Traffic()


def test_a_direction_that_was_not_counted_leaves_the_sum_unknown():
    filled = record()
    write(choose(small_job(), soon(), backends=[Fake("a", DramBytes(read=20))]), filled, filled.traffic, None)
    assert filled.traffic == Traffic(dram_backend="a", dram_read_bytes=20)
    assert "counted not all" in filled.unavailable["traffic.dram_bytes"]


def test_here_without_a_gpu_every_backend_says_why(monkeypatch):
    """Nothing is started, and nothing costs time."""
    monkeypatch.setattr("attnbench.device.nvml.unavailable_reason", lambda: "no NVIDIA driver: none")
    monkeypatch.setattr("attnbench.device.requirements.AMD_DRIVER", SimpleNamespace(exists=lambda: False))
    monkeypatch.setattr("subprocess.Popen", lambda *args, **more: pytest.fail("a process was started"))
    choice = choosing.choose(small_job(), soon())
    assert choice.found is None
    assert list(choice.passed_over) == ["ncu", "cupti-pm", "rocprofv3", "nvml-gpm"]
    assert all(choice.passed_over.values())
