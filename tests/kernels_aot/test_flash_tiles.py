"""What the interpreter hides: shared memory, spills and TF32, from kernels compiled ahead of time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHARED_LIMITS = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
"""Bytes a block may have (CUDA C++ Programming Guide, technical specifications)."""
FORMS = {
    "full": {"left": False, "right": False},
    "causal": {"left": False, "right": True},
    "window": {"left": True, "right": True},
    "decode": {"left": False, "right": False, "decode": True},
}

ORDINARY = [
    (80, "bfloat16", 64, "causal"),
    (80, "float32", 64, "causal"),
    (86, "float16", 128, "window"),
    (90, "float16", 128, "decode"),
    (86, "bfloat16", 256, "causal"),
    (90, "bfloat16", 64, "causal"),
    (90, "bfloat16", 128, "window"),
    (90, "float32", 128, "causal"),
]
ALL = [
    (capability, dtype, head_dim, form)
    for capability in SHARED_LIMITS
    for dtype in ("bfloat16", "float32")
    for head_dim in (64, 80, 128, 256)
    for form in ("full", "window", "decode")
    if (capability, dtype, head_dim, form) not in ORDINARY
]


def compiled(builds: list[tuple[int, str, int, str]], cache: Path) -> dict[Any, dict[str, Any]]:
    """Compile all in one process and return the results by build."""
    requests = [
        json.dumps({"capability": capability, "dtype": dtype, "head_dim": head_dim, **FORMS[form]})
        for capability, dtype, head_dim, form in builds
    ]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("compile_flash.py")],
        input="\n".join(requests),
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2]), "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(builds, map(json.loads, done.stdout.splitlines()), strict=True))


def check(build: tuple[int, str, int, str], found: dict[str, Any]) -> None:
    """E07: the tile fits; E05: float32 is not TF32; no register spills; rows are read 16 bytes at a time."""
    capability, dtype, _, form = build
    assert found["shared_bytes"] <= SHARED_LIMITS[capability], (build, found)
    if form != "decode":  # a shortened tile may spill a few bytes: its time goes into reading the cache
        assert found["spill_bytes"] == 0, (build, found)
    assert found["wide_loads"] > 0, (build, found)
    if dtype == "float32":
        assert not found["tf32"], build


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, dict[str, Any]]:
    return compiled(ORDINARY, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("build", ORDINARY, ids=str)
def test_the_tile_fits_without_spills(build, ordinary):
    check(build, ordinary[build])


@pytest.mark.long
def test_every_tile_of_the_table(tmp_path):
    for build, found in compiled(ALL, tmp_path).items():
        check(build, found)
