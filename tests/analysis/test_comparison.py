"""Records of a GPU stand beside what others published for it, and nothing else does."""

from typing import Any

import pytest

from attnbench.analysis.comparison import gpu_name
from attnbench.analysis.report import Report, build_report
from attnbench.measure.record import Record, Traffic
from tests.analysis.synthetic import make_record, make_run

H200: dict[str, Any] = {
    "num_heads": 64,
    "num_kv_heads": 8,
    "head_dim": 128,
    "head_dim_v": 128,
    "dtype": "bfloat16",
    "device": "cuda",
}
CUDNN_MS = {2048: 0.142, 4096: 0.465, 8192: 1.708, 16384: 6.531, 32768: 25.566}
H100: dict[str, Any] = {**H200, "num_heads": 16, "num_kv_heads": 16, "dtype": "float16"}


def meta(name: str) -> dict[str, Any]:
    return {"environment": {"gpus": [{"name": name}]}}


def report_of(records: list[Record], gpu: str) -> Report:
    return build_report([make_run(records, **meta(gpu))])


def on_h200(factor: float = 2.0, **keys: Any) -> list[Record]:
    return [make_record("sdpa", n, latency_ms=factor * ms, **(H200 | keys)) for n, ms in CUDNN_MS.items()]


def test_each_length_is_compared_once_and_times_before_rates() -> None:
    (one,) = report_of(on_h200(), "NVIDIA H200").published
    assert (one.label, one.name, one.table.quantity) == ("sdpa", "cuDNN", "latency")
    assert [point.seqlen for point in one.points] == list(CUDNN_MS)
    assert [point.published for point in one.points] == list(CUDNN_MS.values())
    assert [point.ratio for point in one.points] == pytest.approx([2.0] * 5)


def test_rates_become_times_by_the_flops_of_their_source() -> None:
    records = [
        make_record("triton-flash", n, latency_ms=1.0, batch=16384 // n, **H100) for n in (512, 4096, 16384)
    ]
    found = {one.name: one for one in report_of(records, "NVIDIA H100 80GB HBM3").published}
    assert set(found) == {"FlashAttention-3", "cuDNN", "Triton", "FlashAttention-2", "standard attention"}
    # 2 · 2 · 128 FLOPs for half of the pairs of 16 heads at 616 TFLOP/s.
    flops = 4 * 128 * 16 * 16384**2 / 2
    last = found["FlashAttention-3"].points[-1]
    assert last.published == pytest.approx(flops / 616e12 * 1e3)
    assert last.ratio == pytest.approx(1 / last.published)
    # Where the standard attention ran out of memory there is nothing to compare with.
    assert [point.seqlen for point in found["standard attention"].points] == [512, 4096]


def test_bytes_of_device_memory_are_compared_with_gigabytes() -> None:
    record = make_record(
        "naive",
        1024,
        latency_ms=83.4,
        mode="fwd_bwd",
        mask={"name": "full"},
        batch=64,
        dtype="float16",
        device="cuda",
        num_heads=16,
        num_kv_heads=16,
    )
    record.traffic = Traffic(dram_bytes=80_600_000_000)
    found = report_of([record], "NVIDIA A100-SXM4-40GB").published
    ratios = {(one.name, one.table.unit): one.points[0].ratio for one in found}
    assert ratios == pytest.approx(
        {
            ("standard attention", "GB"): 80.6 / 40.3,
            ("FlashAttention", "GB"): 80.6 / 4.4,
            ("standard attention", "ms"): 83.4 / 41.7,
            ("FlashAttention", "ms"): 83.4 / 7.3,
        }
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "cpu"},
        {"dtype": "float16"},
        {"num_heads": 32},
        {"num_kv_heads": 64},
        {"head_dim": 64},
        {"head_dim_v": 64},
        {"batch": 2},
        {"mode": "fwd_bwd"},
        {"mask": {"name": "sliding-window", "window_size": 1024}},
        {"key_lengths": [100]},
        {"cache": "warm"},
        {"compile": True},
        {"level": "block", "preset": "tiny"},
    ],
    ids=str,
)
def test_another_form_is_not_compared(changes: dict[str, Any]) -> None:
    assert report_of(on_h200(**changes), "NVIDIA H200").published == ()


def test_another_device_is_not_compared() -> None:
    for name in ("NVIDIA H200 MIG 1g.18gb", "NVIDIA H100 80GB HBM3", ""):
        assert report_of(on_h200(), name).published == ()
    assert report_of(on_h200(), "nvidia  H200").published != ()


def test_a_failed_case_is_not_compared() -> None:
    records = [make_record("sdpa", 2048, status="oom", **H200), *on_h200()[1:]]
    (one,) = report_of(records, "NVIDIA H200").published
    assert [point.seqlen for point in one.points] == list(CUDNN_MS)[1:]


def test_the_gpu_is_the_one_that_was_used() -> None:
    two = {"gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA L4"}]}
    assert gpu_name(make_run([], environment=two)) == ""
    assert gpu_name(make_run([], environment=two, ceilings={"cuda": {"name": "NVIDIA L4"}})) == "NVIDIA L4"
    assert gpu_name(make_run([], environment={"gpus": [{"name": "NVIDIA L4"}] * 2})) == "NVIDIA L4"
    strange: Any
    for strange in ({"gpus": "none"}, {"gpus": ["x", 3]}, [], None):
        assert gpu_name(make_run([], environment=strange, ceilings=3)) == ""


def test_runs_of_two_devices_stand_beside_their_own() -> None:
    report = build_report(
        [
            make_run(on_h200(), "runs/a", **meta("NVIDIA H200")),
            make_run(on_h200(3.0), "runs/b", **meta("NVIDIA L4")),
        ]
    )
    assert [one.label for one in report.published] == ["sdpa (a)"]


def test_a_panel_of_latencies_holds_the_published_ones() -> None:
    report = report_of(on_h200(), "NVIDIA H200")
    latency, *others = (panel for group in report.metrics for panel in group.drawn)
    (curve,) = latency.published
    assert curve.label == "cuDNN"
    assert curve.points == tuple(CUDNN_MS.items())
    assert all(panel.published == () for panel in others)
