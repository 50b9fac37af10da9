"""Faults that public bug reports describe of harnesses, with the right value: caches that race, contests with
another winner each time.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.plan.settings import MeasureSettings
from attnbench.plan.suite import load_suite
from attnbench.run.executor import ExecutorSettings, LocalExecutor

PROCESSES = 8
COMPILE = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from attnbench.contract.discovery import get_implementation
from attnbench.contract.problem import Problem
from attnbench.device.compile import compile_launch
from attnbench.device.targets import find_target

problem = Problem(seqlen_q=512, head_dim=32, dtype="float16", device="cuda")
spec = get_implementation("triton-flash").kernels[0]
kernel, launch = spec.function(), spec.variants(problem, "sm_80")[0]
print("ready", flush=True)
input()
print(json.dumps(asdict(compile_launch(kernel, launch, find_target("sm_80"), Path(sys.argv[1])))))
"""
CONFIGURATIONS = """
import json, sys
from attnbench.measure.attentions import attentions_of
from attnbench.measure.provenance import configurations
from attnbench.plan.suite import load_suite

suite = load_suite(sys.argv[1], device="cuda", device_must_exist=False)
found = {case.case_id: configurations(attentions_of(case)) for case in suite.cases}
print(json.dumps(found, sort_keys=True))
"""
SUITE = """
name = "tiles"
[defaults]
mode = ["fwd", "fwd_bwd"]
dtype = ["float16", "float32"]
seqlen = [64, 4096]
[[sweep]]
implementation = ["triton-flash", "linear", { name = "triton-flash", block_q = 32, num_warps = 2 }]
"""
PINNED = """
name = "pinned"
[[sweep]]
implementation = { name = "triton-flash", block_q = 16, block_k = 32, num_stages = 1 }
seqlen = 48
head_dim = 16
num_heads = 1
device = "cpu"
[measure]
metrics = ["memory"]
"""


@pytest.mark.long
def test_processes_that_fill_one_cache_at_once_get_the_same_kernel(tmp_path):
    """E09: no missing file, and no binary with another's metadata."""
    cache = tmp_path / "cache"
    settings = {"TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "0", "TRITON_DUMP_PTXAS_LOG": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILE, str(tmp_path / f"facts-{number}")],
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for number in range(PROCESSES)
    ]
    try:
        assert [process.stdout.readline() for process in started] == ["ready\n"] * PROCESSES
        assert not cache.exists()
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        found = [json.loads(process.stdout.readline()) for process in started]
        assert [process.wait(60) for process in started] == [0] * PROCESSES
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert found == [found[0]] * PROCESSES
    assert found[0]["registers"] > 0
    assert list(cache.glob("*/*.cubin"))


@pytest.mark.long
def test_the_same_suite_has_the_same_tiles_in_every_process(tmp_path):
    """E15: without a search, tiles come from a table; a pinned number stands in every record of its case."""
    (tmp_path / "tiles.toml").write_text(SUITE, encoding="utf-8")
    command = [sys.executable, "-c", CONFIGURATIONS, str(tmp_path / "tiles.toml")]
    said = [
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    found = json.loads(said[0])
    assert len(found) == 24
    assert all(tiles for tiles in found.values())
    pinned = [tiles["attention"] for case_id, tiles in found.items() if "block_q=32" in case_id]
    assert len(pinned) == 8
    assert {(tile["block_q"], tile["num_warps"]) for tiles in pinned for tile in tiles.values()} == {(32, 2)}


@pytest.mark.long
def test_what_a_suite_pins_is_what_the_record_holds(tmp_path):
    """E15: by the options of the implementation; the id of the case holds them, too."""
    (tmp_path / "pinned.toml").write_text(PINNED, encoding="utf-8")
    [case] = load_suite(tmp_path / "pinned.toml").cases
    settings = ExecutorSettings(measure=MeasureSettings(metrics=("memory",)), preload=(), scratch=tmp_path)
    with LocalExecutor(settings) as executor:
        record = executor.submit(case)
    assert record.status == "ok", record.reason
    asked = {"block_q": 16, "block_k": 32, "num_stages": 1}
    assert asked.items() <= record.provenance.autotune["attention"]["forward"].items()
    assert all(f"{name}={value}" in record.case_id for name, value in asked.items())
