"""Which limit binds, and how near a latency comes to it, from numbers that are easy to check by hand."""

from typing import Any

import pytest

from attnbench.analysis.report import Report, build_report
from attnbench.analysis.roofline import Roofline, RooflinePoint
from attnbench.measure.record import Flops, Provenance, Record, Traffic
from tests.analysis.synthetic import make_record, make_run

CPU = {
    "name": "a processor",
    "threads": 2,
    "matmul_flops_per_s": {"float32": 100e9},
    "copy_bytes_per_s": 8e9,
    "triad_bytes_per_s": 10e9,
    "read_bytes_per_s": 9e9,
    "exp2_per_s": 2e9,
    "cache_bytes": 1_000_000,
    "verdict": ["valid"],
}


def record(
    implementation: str = "naive",
    seqlen: int = 1024,
    *,
    latency_ms: float | None = 10.0,
    useful: int | None = 100_000_000,
    exponentials: int | None = None,
    compulsory_bytes: int | None = 500_000,
    operand_bytes: int | None = 20_000_000,
    dram_bytes: int | None = None,
    threads: int | None = None,
    **keys: Any,
) -> Record:
    made = make_record(implementation, seqlen, latency_ms=latency_ms, **keys)
    made.flops = Flops(useful=useful, exponentials=exponentials)
    made.traffic = Traffic(
        compulsory_bytes=compulsory_bytes, operand_bytes=operand_bytes, dram_bytes=dram_bytes
    )
    made.provenance = Provenance(semantics="softmax", threads=threads)
    return made


def report_of(*records: Record, ceilings: Any = None) -> Report:
    return build_report([make_run(records, ceilings={"cpu": CPU} if ceilings is None else ceilings)])


def point_of(one: Record, **changes: Any) -> RooflinePoint:
    (roofline,) = report_of(one, ceilings={"cpu": CPU | changes}).rooflines
    (point,) = roofline.points
    return point


def test_rate_and_intensity() -> None:
    point = point_of(record())
    assert point.flops_per_s == pytest.approx(100e6 / 10e-3)
    assert point.intensity == 100_000_000 / 20_000_000
    assert not point.counted


@pytest.mark.parametrize(
    ("changes", "limit", "fraction"),
    [
        # 1 ms of products, 2 ms of memory.
        ({}, "memory", 0.2),
        ({"latency_ms": 2.0}, "memory", 1.0),
        ({"useful": 500_000_000}, "matmul", 0.5),
        # 6 ms of exponentials.
        ({"exponentials": 12_000_000}, "exp2", 0.6),
        # Bytes that were counted at the memory are nearer to the truth than operands.
        ({"dram_bytes": 70_000_000}, "memory", 0.7),
        ({"dram_bytes": 1_000}, "matmul", 0.1),
    ],
    ids=str,
)
def test_the_longest_time_is_the_limit(changes: dict[str, Any], limit: str, fraction: float) -> None:
    point = point_of(record(**changes))
    assert point.limit == limit
    assert point.fraction == pytest.approx(fraction)


def test_intensity_is_of_counted_bytes_where_there_are_any() -> None:
    point = point_of(record(dram_bytes=50_000_000))
    assert (point.intensity, point.counted) == (2.0, True)


def test_a_limit_that_is_beaten_did_not_bind() -> None:
    # 2 ms of memory in 1.5 ms: some of the operands came from a cache. Products take 1 ms of it.
    beaten = point_of(record(latency_ms=1.5))
    assert beaten.limit == "matmul"
    assert beaten.fraction == pytest.approx(1 / 1.5)
    # A polynomial takes the place of exponentials.
    beaten = point_of(record(exponentials=30_000_000))
    assert beaten.limits_ms["exp2"] == pytest.approx(15.0)
    assert beaten.limit == "memory"
    # Within 5 % it is noise.
    near = point_of(record(latency_ms=1.96))
    assert near.limit == "memory"
    assert near.fraction == pytest.approx(2 / 1.96)
    absurd = point_of(record(latency_ms=0.1))
    assert (absurd.limit, absurd.fraction) == ("", None)


def test_operands_that_a_cache_holds_cost_memory_what_is_compulsory() -> None:
    held = point_of(record(operand_bytes=900_000))
    assert held.limits_ms["memory"] == pytest.approx(500_000 / 10e9 * 1e3)
    beyond = point_of(record(operand_bytes=1_100_000))
    assert beyond.limits_ms["memory"] == pytest.approx(1_100_000 / 10e9 * 1e3)
    neither = point_of(record(operand_bytes=None, compulsory_bytes=None))
    assert set(neither.limits_ms) == {"matmul"}
    assert neither.intensity is None


def test_products_may_go_through_a_type_that_is_as_accurate() -> None:
    # TF32 three times gives float32's accuracy, and bfloat16 may be computed in float32.
    rates = {"float32": 100e9, "tf32": 900e9}
    assert point_of(record(), matmul_flops_per_s=rates).limits_ms["matmul"] == pytest.approx(
        100e6 / 300e9 * 1e3
    )
    rates = {"bfloat16": 5e9, "float32": 100e9}
    sixteen = point_of(record(dtype="bfloat16"), matmul_flops_per_s=rates)
    assert sixteen.limits_ms["matmul"] == pytest.approx(1.0)


def test_one_roof_for_each_type_and_run() -> None:
    ceilings = {"cpu": CPU | {"matmul_flops_per_s": {"float32": 100e9, "float64": 50e9}}}
    report = report_of(record(), record(dtype="float64"), record("sdpa"), ceilings=ceilings)
    assert [(one.roof.dtype, len(one.points)) for one in report.rooflines] == [("float32", 2), ("float64", 1)]
    two = build_report(
        [make_run([record()], f"runs/{name}", ceilings={"cpu": CPU | {"name": name}}) for name in "ab"]
    )
    assert [(one.roof.run, one.roof.device) for one in two.rooflines] == [("a", "a"), ("b", "b")]
    assert [point.label for one in two.rooflines for point in one.points] == ["naive (a)", "naive (b)"]


def test_the_longest_length_of_each_curve() -> None:
    (roofline,) = report_of(
        *(record(seqlen=n) for n in (2048, 512, 1024)),
        record("sdpa", 512),
        record("sdpa", 2048, status="oom", latency_ms=None),
        record("naive", 256, mode="fwd_bwd"),
    ).rooflines
    assert len(roofline.points) == 5
    found = [(point.label, point.row.mode, point.row.seqlen) for point in roofline.longest]
    assert found == [("naive", "fwd", 2048), ("sdpa", "fwd", 512), ("naive", "fwd_bwd", 256)]


@pytest.mark.parametrize(
    "one",
    [
        record(latency_ms=None),
        record(useful=None),
        record(useful=0),
        record(dtype="float16"),
        record(device="cuda"),
        record(level="block", preset="tiny"),
        record(threads=1),
    ],
    ids=["untimed", "uncounted", "no-flops", "no-rate", "no-ceilings", "block", "other-threads"],
)
def test_what_cannot_be_placed_is_left_out(one: Record) -> None:
    assert report_of(one).rooflines == ()


@pytest.mark.parametrize(
    "ceilings",
    [
        3,
        {},
        {"cpu": None},
        {"cpu": {"unavailable": {"ceilings": "no time"}}},
        {"cpu": CPU | {"matmul_flops_per_s": "fast"}},
        {"cpu": CPU | {"matmul_flops_per_s": {"float32": float("nan")}}},
        {"cpu": {"matmul_flops_per_s": {"float32": 1e9}, "copy_bytes_per_s": -1}},
    ],
    ids=str,
)
def test_strange_ceilings_are_none(ceilings: Any) -> None:
    assert report_of(record(), ceilings=ceilings).rooflines == ()


def test_a_ceiling_that_is_lacking_is_no_limit() -> None:
    given = {"matmul_flops_per_s": {"float32": 100e9}, "copy_bytes_per_s": 10e9}
    (roofline,) = report_of(record(exponentials=10**9), ceilings={"cpu": given}).rooflines
    assert isinstance(roofline, Roofline)
    assert roofline.roof.device == "cpu"
    assert roofline.roof.ridge == 10.0
    assert set(roofline.points[0].limits_ms) == {"matmul", "memory"}
    assert point_of(record(), verdict=["shared", "valid"]).limit == "memory"
    (shared,) = report_of(record(), ceilings={"cpu": CPU | {"verdict": ["shared"]}}).rooflines
    assert shared.roof.doubts == ("shared",)
