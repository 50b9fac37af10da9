"""Records with known contents, in the shape that the harness writes."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnbench.measure.record import (
    Agreement,
    Latency,
    Memory,
    OptimizerStep,
    Provenance,
    Quality,
    Record,
    Share,
    Telemetry,
    Traffic,
)
from attnbench.run.store import Run

SEQLENS = (256, 512, 1024, 2048, 4096)
SHARE_FIELDS = ("latency_fraction", "memory_fraction", "flops_fraction")
ARCHITECTURES = {
    "tiny": "decoder-only",
    "small-decoder": "decoder-only",
    "bert-base": "encoder-only",
    "transformer-base": "encoder-decoder",
}
"""Of presets."""


META: dict[str, Any] = {
    "schema_version": 1,
    "suite": {
        "name": "quick",
        "description": "Five attention mechanisms on whatever this machine has",
        "text": 'name = "quick"',
    },
    "command": ["attnbench", "run", "quick"],
    "started_utc": "2026-11-30T09:30:00Z",
    "environment": {"cpu": {"model": "AMD EPYC", "logical_cores": 2}, "gpus": [], "os": "Linux 6.18"},
    "versions": {"python": "3.11.7", "torch": "2.13.0+cpu", "triton": "3.9.0", "attnbench": "0.1.0"},
    "revision": {"attnbench": {"commit": "4e130e8c0ffee00000000000000000000000000a", "modified": True}},
    "status": "finished",
}


def make_run(records: Iterable[Record], path: str | Path = "runs/quick-20261130T093000Z", **meta: Any) -> Run:
    return Run(path=Path(path), meta={**META, **meta}, records=list(records))


def make_case(implementation: str = "naive", seqlen: int = 256, **keys: Any) -> dict[str, Any]:
    case = {
        "implementation": implementation,
        "seqlen_q": seqlen,
        "seqlen_k": seqlen,
        "options": {},
        "level": "attention",
        "mode": "fwd",
        "mask": {"name": "causal"},
        "batch": 1,
        "num_heads": 8,
        "num_kv_heads": 8,
        "head_dim": 64,
        "head_dim_v": 64,
        "dtype": "float32",
        "device": "cpu",
        "scale": None,
        "key_lengths": None,
        "query_start": None,
        "preset": None,
        "architecture": None,
        "inputs": "normal",
        "cache": "cold",
        "threads": None,
        "compile": False,
    }
    return {**case, **keys}


def make_record(
    implementation: str = "naive",
    seqlen: int = 256,
    *,
    status: str = "ok",
    reason: str | None = None,
    latency_ms: float | None = None,
    noise: float = 0.05,
    peak_bytes: int | None = None,
    predicted_peak_bytes: int | None = None,
    operand_bytes: int | None = None,
    requested_bytes: int | None = None,
    error: float | None = None,
    verdict: Iterable[str] = ("valid",),
    samples_ms: list[float] | None = None,
    launches: int = 5,
    softmax_distance: float | None = None,
    unavailable: dict[str, str] | None = None,
    state_bytes: int | None = None,
    shares: tuple[float | None, float | None, float | None] | None = None,
    loss: float | None = None,
    step_ms: float | None = None,
    semantics: str = "softmax",
    sm_clock_mhz: float | None = None,
    **keys: Any,
) -> Record:
    case = make_case(implementation, seqlen, **keys)
    latency = latency_ms and Latency(
        median_ms=latency_ms,
        p10_ms=latency_ms * (1 - 2 * noise),
        p90_ms=latency_ms * (1 + 2 * noise),
        ci95_low_ms=latency_ms * (1 - noise),
        ci95_high_ms=latency_ms * (1 + noise),
        samples_ms=samples_ms or [latency_ms] * 5,
        launches=launches,
        timer="perf_counter",
        cache="cold",
        verdict=list(verdict),
    )
    agreement = error is not None and Agreement(
        max_abs_error=error,
        rms_relative_error=error / 3,
        budget=4e-6,
        rms_budget=1e-5,
        budget_used=error / 4e-6,
        verdict="within budget",
        softmax_distance=softmax_distance,
    )
    shape = f"b{case['batch']}-h{case['num_heads']}-d{case['head_dim']}"
    mask = case["mask"]["name"] + str(case["mask"].get("window_size", ""))
    options = "".join(f",{key}={value}" for key, value in case["options"].items())
    preset = f":{case['preset']}" if case["preset"] else ""
    case_id = "/".join(
        [
            case["level"] + preset,
            implementation + options,
            case["mode"],
            mask,
            f"n{seqlen}",
            shape,
            case["dtype"],
            case["device"],
        ]
    )
    return Record(
        case_id=case_id,
        case=case,
        status=status,  # type: ignore[arg-type]
        reason=reason if reason or status == "ok" else f"because it is {status}",
        unavailable=unavailable or {},
        latency=latency or None,
        memory=Memory(
            peak_bytes=peak_bytes,
            peak_increment_bytes=peak_bytes and peak_bytes - 4 * 3 * seqlen * 512,
            predicted_peak_bytes=predicted_peak_bytes or peak_bytes,
            state_bytes=state_bytes,
        ),
        traffic=Traffic(
            compulsory_bytes=4 * 4 * seqlen * 512,
            operand_bytes=operand_bytes,
            operand_backend="aten",
            requested_bytes=requested_bytes,
        ),
        agreement=agreement or None,
        share=None if shares is None else Share(**dict(zip(SHARE_FIELDS, shares, strict=True))),
        optimizer_step=None if step_ms is None else OptimizerStep(median_ms=step_ms, state_bytes=2**20),
        quality=None if loss is None else Quality(loss=loss, perplexity=math.exp(loss)),
        telemetry=None if sm_clock_mhz is None else Telemetry(sm_clock_mhz=sm_clock_mhz),
        provenance=Provenance(
            architecture=case["architecture"] or ARCHITECTURES.get(case["preset"]),
            semantics=semantics,
            seed=0,
            threads=1,
            reproduce=f"attnbench run quick --implementation {implementation}",
        ),
    )


def quick_run(seqlens: Iterable[int] = SEQLENS) -> Run:
    """Something like the `quick` suite on a CPU, with exact powers of the length."""
    records = []
    io = 4 * 4 * 512
    window = {"name": "sliding-window", "window_size": 256, "causal": True}
    for level, slow in (("attention", 1.0), ("model", 6.0)):
        keys: dict[str, Any] = {"level": level}
        if level == "model":
            keys |= {"preset": "tiny", "inputs": "text"}
        for mode, factor in (("fwd", 1.0), ("fwd_bwd", 3.0)):
            for n in seqlens:
                if mode == "fwd_bwd" and n > 2048:
                    continue
                r, f = n / 256, factor * slow
                square = 4 * 8 * n * n
                common: dict[str, Any] = {"mode": mode, **keys}
                records += [
                    make_record(
                        "naive",
                        n,
                        latency_ms=1.9 * f * r**2,
                        peak_bytes=int(io * n + 3 * square * factor),
                        operand_bytes=int((io * n + 5 * square) * f),
                        error=3e-7 * r**0.2,
                        **common,
                    )
                    if not (level == "model" and n == 4096)
                    else make_record(
                        "naive",
                        n,
                        status="oom",
                        reason="predicted peak 1.61 GiB is over the limit of 1 GiB",
                        predicted_peak_bytes=io * n + 3 * square,
                        **common,
                    ),
                    make_record(
                        "sdpa",
                        n,
                        latency_ms=0.41 * f * r**1.9,
                        peak_bytes=int(io * n * factor),
                        operand_bytes=int(io * n * f),
                        error=2.5e-7 * r**0.1,
                        **common,
                    ),
                    make_record(
                        "linear",
                        n,
                        latency_ms=0.9 * f * r,
                        peak_bytes=int(io * n * 1.5 * factor),
                        operand_bytes=int(io * n * 3 * f),
                        error=6e-7,
                        softmax_distance=0.4,
                        verdict=("shared",) if n == 512 else ("valid",),
                        **common,
                    ),
                    make_record(
                        "sliding-window",
                        n,
                        latency_ms=1.2 * f * r,
                        peak_bytes=int(io * n * 2 * factor),
                        operand_bytes=int(io * n * 2 * f),
                        error=4e-7,
                        **(common | {"mask": window}),
                    ),
                    make_record(
                        "triton-flash",
                        n,
                        operand_bytes=io * n,
                        requested_bytes=int(io * n * r),
                        peak_bytes=io * n,
                        error=2e-7,
                        unavailable={"latency": "interpreted on a CPU: its time says nothing"},
                        **common,
                    )
                    if mode == "fwd"
                    else make_record(
                        "triton-flash", n, status="unsupported", reason="no backward yet", **common
                    ),
                ]
    return make_run(records)
