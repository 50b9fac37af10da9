"""What the tiled kernels cannot take is refused before they are launched, with a reason."""

import pytest

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import refusals
from attnbench.contract.problem import Problem

FLASH = get_implementation("triton-flash")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 264}, "head_dim=264 is wider"),
        ({"head_dim_v": 512}, "head_dim_v=512 is wider"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float64"}, "dtype:float64"),
        ({"options": {"block_q": 24}}, "block_q must be a power of two"),
        ({"options": {"num_stages": 0}}, "num_stages must be an integer"),
        ({"options": {"blockq": 32}}, "no option 'blockq'"),
    ],
)
def test_refused_with_a_reason(changes, reason):
    reasons = refusals(FLASH, Problem(seqlen_q=8).replace(**changes))
    assert len(reasons) == 1
    assert reason in reasons[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"options": {"block_q": 2**30}}, "block_q must be at most 1024, not 1073741824"),
        ({"options": {"num_warps": True}}, "num_warps must be a power of two of at least 1, not True"),
        ({"options": {"tma": True}}, "tma must be 0 or 1, not True"),
        ({"query_start": 2**31 - 30}, "positions pass 2**31, which the kernel counts in 32 bits"),
        ({"query_start": -(2**31)}, "positions pass 2**31, which the kernel counts in 32 bits"),
    ],
)
def test_what_the_kernels_cannot_take_is_refused_before(change, reason):
    assert refusals(FLASH, Problem(seqlen_q=64, **change)) == [reason]
