"""Case E07: tiles that ask for more shared memory than the GPU has are refused beforehand, and no others."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from attnbench.contract.discovery import get_implementation
from attnbench.contract.problem import Problem
from attnbench.device.targets import find_target
from attnbench.implementations._flash import tiles
from attnbench.implementations._flash.memory import least_shared_bytes
from attnbench.implementations._flash.tiles import Tile, tile_for, tile_table
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.run.executor import ExecutorSettings, InProcessExecutor

SHARED_MEMORY = """
import json, sys
from pathlib import Path
from attnbench.contract.discovery import get_implementation
from attnbench.contract.problem import Problem
from attnbench.device.compile import compile_launch
from attnbench.device.targets import find_target

kernels = {spec.name: spec for spec in get_implementation("triton-flash").kernels}
facts = Path(sys.argv[1])
for name, target, fields in json.loads(sys.argv[2]):
    spec, target = kernels[name], find_target(target)
    (launch,) = spec.variants(Problem(device="cuda", **fields), target.name)
    print(compile_launch(spec.function(), launch, target, facts).shared_memory_bytes)
"""


def compiled_shared_bytes(launches: Sequence[tuple[str, str, dict[str, Any]]], folder: Path) -> list[int]:
    """Compile kernels ahead of time, given as (kernel, target, fields of the problem)."""
    named = [(f"flash_{kernel}_kernel", target, fields) for kernel, target, fields in launches]
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SHARED_MEMORY, str(folder), json.dumps(named)],
        env={**variables, "TRITON_DUMP_PTXAS_LOG": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.splitlines()]


def options(block_q: int, block_k: int, num_stages: int, **more: int) -> dict[str, Any]:
    return {"block_q": block_q, "block_k": block_k, "num_warps": 8, "num_stages": num_stages, **more}


HEADS_OF_128: dict[str, Any] = {"seqlen_q": 4096, "head_dim": 128, "dtype": "float16"}
LARGE, MIDDLING = options(128, 128, 3), options(128, 64, 2)
ON_SM_86 = 101_376


@pytest.mark.long
def test_e07_the_table_takes_a_tile_that_fits_where_a_larger_one_does_not(tmp_path: Path) -> None:
    """meta-pytorch/attention-gym#14: a tile of a data-centre GPU asked for more shared memory than a consumer
    card has. Heads of 128 in float16: 128 × 128 in three stages takes 160 KiB, 128 × 64 in two 64 KiB.
    """
    given: tuple[dict[str, Any], ...] = (LARGE, MIDDLING, {})
    launches = [("forward", "sm_86", {**HEADS_OF_128, "options": tile}) for tile in given]
    large, middling, listed = compiled_shared_bytes(launches, tmp_path)
    assert large >= 163_840 > ON_SM_86
    assert ON_SM_86 > middling >= 65_536
    assert listed <= ON_SM_86


def widths(problem: Problem) -> tuple[int, int]:
    return problem.head_dim, problem.head_dim_v


@pytest.mark.parametrize(
    ("kernel", "tile", "head_dim", "dtype_bytes", "needed"),
    [
        ("forward", LARGE, 128, 2, 163_840),
        ("forward", MIDDLING, 128, 2, 65_536),
        ("forward", MIDDLING, 256, 2, 131_072),
        ("forward", options(128, 64, 1), 128, 2, 32_768),
        ("dq", LARGE, 128, 2, 196_608),
        ("dkdv", options(64, 128, 2), 128, 2, 98_304),
        ("dkdv", options(32, 64, 3), 128, 4, 65_536),
        ("decode", options(16, 64, 3), 80, 2, 69_632),
    ],
)
def test_e07_bytes_that_a_tile_takes_at_least(
    kernel: str, tile: dict[str, Any], head_dim: int, dtype_bytes: int, needed: int
) -> None:
    assert least_shared_bytes(kernel, Tile(**tile), (head_dim, head_dim), dtype_bytes) == needed


BACKWARD: dict[str, Any] = {"mode": "fwd_bwd"}
SPREAD = [
    ("forward", "sm_86", {**HEADS_OF_128, "options": options(64, 32, 4)}),
    ("decode", "sm_90", {**HEADS_OF_128, "seqlen_q": 1, "seqlen_k": 4096, "options": options(16, 64, 3)}),
    ("forward", "sm_90", {**HEADS_OF_128, "options": options(128, 64, 2)}),
    ("dkdv", "sm_86", {**HEADS_OF_128, **BACKWARD, "options": options(64, 64, 1)}),
] + [
    (kernel, target, {**HEADS_OF_128, **BACKWARD, "head_dim": head_dim, "dtype": dtype, "options": tile})
    for i, (target, tma) in enumerate((("sm_80", 0), ("sm_90", 1), ("sm_120", 0)))
    for j, (head_dim, dtype, tile) in enumerate(
        (
            (64, "bfloat16", options(64, 64, 3, tma=tma)),
            (80, "float16", options(64, 32, 2, tma=tma)),
            (64, "float32", options(32, 32, 2)),
            (64, "float32", options(32, 64, 3)),
        )
    )
    for kernel in [("forward", "dq", "dkdv")[(i + j) % 3]]
]
"""Every two of kernel, target and tile together."""


@pytest.mark.long
def test_e07_what_fits_is_never_refused(tmp_path: Path) -> None:
    """The compiler never takes less than what a tile is said to take at least."""
    for (kernel, target, fields), taken in zip(SPREAD, compiled_shared_bytes(SPREAD, tmp_path), strict=True):
        p = Problem(device="cuda", **fields)
        needed = least_shared_bytes(kernel, tile_for(p, target, kernel), widths(p), p.dtype_bytes)
        assert needed <= taken, (kernel, target, fields)


@pytest.mark.parametrize("kernel", ["forward", "dq", "dkdv", "decode"])
def test_e07_no_entry_of_the_table_is_refused(kernel: str) -> None:
    for target in (name for name in tile_table()[kernel] if name.startswith("sm_")):
        for dtype, head_dim in itertools.product(("float16", "float32"), (16, 64, 128, 256)):
            p = Problem(seqlen_q=4096, head_dim=head_dim, dtype=dtype, device="cuda")
            needed = least_shared_bytes(kernel, tile_for(p, target, kernel), widths(p), p.dtype_bytes)
            assert needed <= find_target(target).shared_bytes_per_block


def on_a_gpu_of(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_capability_by_driver", lambda: capability)


def test_e07_a_tile_too_large_for_the_gpu_is_unsupported_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is launched, with the bytes it needs and those there are."""
    on_a_gpu_of(86, monkeypatch)
    case = Case(implementation="triton-flash", device="cuda", **HEADS_OF_128, options=LARGE)
    with InProcessExecutor(ExecutorSettings(measure=MeasureSettings(metrics=("agreement",)))) as executor:
        record = executor.submit(case)
        after = executor.submit(Case(implementation="triton-flash", seqlen_q=16, head_dim=16))
    assert record.status == "unsupported"
    assert record.reason == (
        "a block of the forward kernel takes at least 163840 bytes of shared memory with 128 × 128 in "
        "3 stages; sm_86 has 101376"
    )
    assert after.status == "ok"


@pytest.mark.parametrize(
    ("capability", "fields", "faults"),
    [
        (86, {"options": MIDDLING}, 0),
        (80, {"options": LARGE}, 0),
        (80, {"options": LARGE, **BACKWARD}, 2),
        (86, {"options": MIDDLING, "head_dim": 256}, 1),
        (86, {"options": MIDDLING, "head_dim": 256, **BACKWARD}, 3),
        (86, {"head_dim": 256, **BACKWARD}, 0),
        (87, {"options": LARGE}, 0),
    ],
    ids=[
        "64 KiB",
        "160 KiB on an A100",
        "with gradients",
        "wide heads",
        "and theirs",
        "as listed",
        "unknown",
    ],
)
def test_e07_each_kernel_that_does_not_fit_is_named(
    capability: int, fields: dict[str, Any], faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a GPU whose shared memory is not listed nothing is said: there the launch itself decides."""
    on_a_gpu_of(capability, monkeypatch)
    problem = Problem(device="cuda", **{**HEADS_OF_128, **fields})
    assert len(get_implementation("triton-flash").unsupported(problem)) == faults


def test_e07_a_turing_gpu_is_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-project/vllm#36802, of a T4: 64 KiB a block, and no tensor-core product for this kernel."""
    on_a_gpu_of(75, monkeypatch)
    problem = Problem(device="cuda", **HEADS_OF_128)
    assert get_implementation("triton-flash").unsupported(problem) == [
        "compute capability 7.5 is older than 8.0"
    ]
