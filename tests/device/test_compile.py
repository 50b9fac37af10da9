"""A small matrix product compiled for every target: what comes out is what its tile says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.device import kernels
from attnbench.device.kernel_forms import Form

FILE = str(Path(__file__).parents[1] / "toys" / "product_kernel.py")
WIDTH = 64
FORM = Form(head_dim=WIDTH, dtype="float16")


@pytest.fixture(scope="module")
def compiled():
    """One row a target."""
    targets = ["sm_80", "sm_90", "sm_100", "gfx942"]
    with kernels.Compilers() as compilers:
        found = compilers.inspect(compilers.find_tasks(FILE, targets, [FORM]))
        return {row["target"]: row for _, rows in found for row in rows}


@pytest.mark.parametrize(
    ("target", "kind"), [("sm_80", "mma"), ("sm_90", "hgmma"), ("sm_100", "tcgen05"), ("gfx942", "mfma")]
)
def test_a_product_uses_the_tensor_cores_of_its_target(compiled, target, kind):
    row = compiled[target]
    assert (row["implementation"], row["kernel"], row["mode"]) == ("product", "product_kernel", "fwd")
    assert row["main_loop"][kind] > 0
    assert set(row["main_loop"]) & {"mma", "hgmma", "tcgen05", "mfma"} == {kind}
    assert row["spill_bytes"] == 0
    assert 16 < row["registers"] <= 256
    assert row["blocks_per_sm"] >= 1
    assert row["warnings"] == []
    assert (row["tensor_memory_columns"] > 0) == (target == "sm_100")


def test_the_multiply_adds_of_an_iteration_are_those_of_its_instructions(compiled):
    """16 × 8 × 16 of a warp's instruction, 64 × N × 16 of four warps'."""
    tile = 64 * 64 * WIDTH
    for target, of_a_warp in (("sm_80", 16 * 8 * 16), ("sm_90", 64 * 64 * 16 // 4)):
        loop, kind = compiled[target]["main_loop"], {"sm_80": "mma", "sm_90": "hgmma"}[target]
        assert loop[kind] * of_a_warp * compiled[target]["warps"] == tile
        expected = loop["total"] * compiled[target]["warps"] * 1024 / tile
        assert compiled[target]["instructions_per_1024_multiply_adds"] == pytest.approx(expected, abs=1e-3)


def test_loads_are_asynchronous_and_as_wide_as_the_alignment_allows(compiled):
    for target in ("sm_80", "sm_90", "sm_100"):
        assert compiled[target]["instructions"]["async_copy_16"] > 0


CODE = f"""
import json, sys
from dataclasses import asdict, replace
from pathlib import Path
from attnbench.contract.discovery import get_implementation
from attnbench.contract.problem import Problem
from attnbench.device.compile import CompilationFailed, compile_launch
from attnbench.device.targets import find_target
spec = get_implementation({FILE!r}).kernels[0]
facts, target = Path(sys.argv[1]), find_target("sm_80")
(launch,) = spec.variants(Problem(seqlen_q=64, head_dim=64, dtype="float32", device="cuda"), "sm_80")
starved = replace(launch, options={{**launch.options, "maxnreg": 32}})
print(json.dumps(asdict(compile_launch(spec.function(), starved, target, facts))))
for pattern in ("*.json", "*"):
    for path in facts.glob(pattern):
        path.unlink()
    print(json.dumps(asdict(compile_launch(spec.function(), starved, target, facts))))
wrong = replace(launch, arguments={{**launch.arguments, "WIDTH": 48}})
try:
    compile_launch(spec.function(), wrong, target, facts)
except CompilationFailed as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.long
def test_spills_are_counted_and_what_is_recalled_is_what_was_found(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "facts")],
        env={**environment, "TRITON_DUMP_PTXAS_LOG": "1", "TRITON_CACHE_DIR": str(tmp_path / "triton")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, read_again, made_again, complaint = map(json.loads, done.stdout.splitlines())
    assert found["registers"] == 32
    assert found["spill_bytes"] > 0
    assert found["instructions"]["local_load"] > 0
    assert found["instructions"]["local_store"] > 0
    assert not {"mma", "hgmma"} & set(found["instructions"])  # IEEE float32 is no work for tensor cores
    assert found == read_again == made_again
    assert re.search("power of 2", complaint)


def test_a_compiler_that_dies_costs_its_own_row_an_error(tmp_path):
    """As LLVM does when one of its assertions fails."""
    dying = tmp_path / "dying.py"
    dying.write_text(
        Path(FILE).read_text().replace("q, k, _ = meta_inputs(problem)", "import os; os.abort()", 1)
    )
    with kernels.Compilers() as compilers:
        (task,) = compilers.find_tasks(str(dying), ["sm_90"], [FORM])
        ((_, rows),) = compilers.inspect([task])
    assert [row["error"] for row in rows] == ["the compiling process was ended by SIGABRT"]


def test_results_are_kept_beside_tritons_own(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert kernels.cache_folder() == tmp_path / "attnbench-kernels"
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernels.cache_folder() == tmp_path / "attnbench" / "kernels"
