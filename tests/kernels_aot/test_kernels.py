"""What the interpreter hides: spills, shared memory, tensor cores, from kernels compiled ahead of time.

Exact for the Triton that `baseline.json` names; another one allocates registers in another way.
"""

import pytest
import triton

from attnbench.contract.errors import UsageError
from attnbench.device.kernel_baseline import differences, name_of, read_baseline
from attnbench.device.kernel_forms import Form
from attnbench.device.kernels import Compilers, Task, identity
from tests.kernels_aot.matrix import BASELINE, ORDINARY, compiled, faults, whole_matrix

ROWS = read_baseline(BASELINE)
WRITTEN_WITH = {row["triton"] for row in ROWS}


def found_wrong(rows):
    return [f"{name_of(row)}: {fault}" for row in rows for fault in faults(row)]


def require_the_same(rows):
    """Kernels are as in the baseline (`make kernels-baseline` writes it anew), or Triton is another."""
    found = [f"{one.row}: {one.fact} {one.then} -> {one.now}" for one in differences(ROWS, rows)]
    if {triton.__version__} != WRITTEN_WITH:
        print(*found, sep="\n")
        pytest.skip(f"the baseline is of Triton {', '.join(WRITTEN_WITH)}; {len(found)} facts differ")
    assert found == []
    known = {identity(row) for row in ROWS}
    assert [name_of(row) for row in rows if identity(row) not in known] == []
    assert found_wrong(rows) == []


def test_every_kernel_of_the_baseline_is_what_it_must_be():
    assert found_wrong(ROWS) == []


@pytest.mark.parametrize("task", ORDINARY, ids=lambda task: f"{task.variant}-{task.target}")
def test_kernels_compile_to_what_they_did(task: Task):
    with Compilers() as compilers:
        rows = compiled(compilers, [task])
    assert rows
    require_the_same(rows)


@pytest.mark.long
def test_all_kernels_compile_to_what_they_did():
    with Compilers() as compilers:
        rows = compiled(compilers, whole_matrix(compilers))
    require_the_same(rows)
    assert {identity(row) for row in rows} == {identity(row) for row in ROWS}


LOOKING = """
import os
from pathlib import Path

Path({seen!r}).write_text(os.environ.get("TRITON_DEFAULT_FP_FUSION", "nothing"))
raise ValueError("seen enough")
"""


@pytest.mark.parametrize(("said", "value"), [(None, "1"), ("0", "0")])
def test_compiling_processes_are_told_whether_to_fuse(said, value, tmp_path, monkeypatch):
    """A kernel that says nothing itself is compiled for `attnbench kernels` as it is for a run."""
    monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION", raising=False)
    if said is not None:
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", said)
    kernel, seen = tmp_path / "kernel.py", tmp_path / "seen"
    kernel.write_text(LOOKING.format(seen=str(seen)))
    with Compilers() as compilers, pytest.raises(UsageError, match="seen enough"):
        compilers.find_tasks(str(kernel), ["sm_80"], [Form(head_dim=64)])
    assert seen.read_text() == value
