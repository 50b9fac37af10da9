"""What differs from a baseline, and whether that is a fault."""

import pytest

from attnbench.contract.errors import UsageError
from attnbench.device.kernel_baseline import differences, read_baseline

ROW = {
    "implementation": "mine",
    "kernel": "my_kernel",
    "target": "sm_90",
    "head_dim": 64,
    "dtype": "bfloat16",
    "mask": "causal",
    "ragged": True,
    "mode": "fwd",
    "variant": 2,
    "triton": "3.9.0",
    "registers": 100,
    "main_loop": {"total": 200, "hgmma": 8},
    "warnings": [],
}


def test_the_same_is_no_difference_and_other_rows_are_not_compared():
    assert list(differences([ROW], [ROW, {**ROW, "target": "sm_80"}])) == []


def test_facts_are_told_one_by_one():
    now = {**ROW, "registers": 101, "main_loop": {"total": 200, "mma": 64}}
    found = [tuple(one) for one in differences([ROW], [now])]
    name = "mine my_kernel fwd bfloat16 D64 causal ragged (2) sm_90"
    assert found == [
        (name, "registers", 100, 101, True),
        (name, "main_loop.hgmma", 8, None, True),
        (name, "main_loop.mma", None, 64, True),
    ]


def test_another_triton_is_no_fault_and_no_difference_by_itself():
    assert list(differences([ROW], [{**ROW, "triton": "3.8.0"}])) == []
    (one,) = differences([ROW], [{**ROW, "triton": "3.8.0", "registers": 90}])
    assert not one.fault


def test_a_kernel_that_compiles_no_more_differs():
    gone = {key: ROW[key] for key in ROW if key not in ("registers", "main_loop", "warnings")}
    assert {one.fact for one in differences([ROW], [{**gone, "error": "no"}])} == {
        "registers",
        "main_loop",
        "warnings",
        "error",
    }


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{}", "not a list of rows"),
        (b"[1]", "not a list of rows"),
        (b'[{"implementation": "mine"}]', "a row without 'kernel'"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path, content, why):
    path = tmp_path / "baseline.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"is no baseline .*: {why}$"):
        read_baseline(path)


def test_a_baseline_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"is no baseline .*: no such file or directory$"):
        read_baseline(tmp_path / "nowhere.json")
