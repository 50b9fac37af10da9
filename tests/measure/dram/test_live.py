"""The live path, on a GPU: `make gpu-test`. What works is compared with a call whose traffic is known."""

import pytest

from attnbench.measure.dram import cupti_pm, ncu, nvml_gpm
from attnbench.measure.dram.audit import audit
from attnbench.measure.dram.choose import LIMIT_S
from attnbench.measure.dram.job import case_job, known_job
from attnbench.measure.pipeline import measure_case
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

pytestmark = pytest.mark.gpu


def hoped_for(backend):
    finding = backend.probe()
    if not finding.available:
        pytest.skip(f"{backend.NAME}: {finding.detail}")
    return backend


@pytest.mark.parametrize("backend", [ncu, cupti_pm], ids=lambda backend: backend.NAME)
def test_counted_reads_are_those_of_a_copy(backend):
    """Written bytes are not judged: some of them are still in the cache when the counters stop."""
    job = known_job("cuda")
    found = hoped_for(backend).measure(job, LIMIT_S)
    compared = audit(found, job.resident_bytes // 2, job.resident_bytes // 2)
    assert compared.agrees, compared


def test_the_estimate_is_within_a_quarter():
    job = known_job("cuda")
    found = hoped_for(nvml_gpm).measure(job, LIMIT_S)
    assert found.total == pytest.approx(job.resident_bytes, rel=0.25)


def test_a_backward_pass_is_seen_though_another_thread_launches_it():
    case = Case(
        implementation="sdpa-flash", seqlen_q=8192, mode="bwd", device="cuda", dtype="bfloat16", batch=4
    )
    found = hoped_for(ncu).measure(case_job(build_workload(case)), LIMIT_S)
    assert found.read > 4 * 8 * 8192 * 64 * 2


def test_a_record_holds_what_was_counted():
    case = Case(implementation="sdpa-flash", seqlen_q=8192, batch=4, device="cuda", dtype="bfloat16")
    record = measure_case(case, MeasureSettings(metrics=("traffic", "dram")))
    assert record.traffic.dram_bytes or record.unavailable["traffic.dram_bytes"]
    if record.traffic.dram_bytes is not None:
        assert record.traffic.dram_backend
        assert record.traffic.dram_verdict in ("valid", "estimate")
