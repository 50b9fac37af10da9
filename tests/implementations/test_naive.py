"""The costs that naive states, against operators counted one by one."""

import itertools
from typing import Any

import pytest
import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import Causal, Full
from attnbench.contract.problem import Problem
from attnbench.measure.counting import count_call
from attnbench.measure.memory import predict_counts
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case

SHAPES: list[dict[str, Any]] = [
    {"seqlen_q": 64},
    {"seqlen_q": 129, "batch": 2},
    {"seqlen_q": 5, "seqlen_k": 40},
    {"seqlen_q": 33, "scale": 1.0},
    {"seqlen_q": 33, "head_dim_v": 8},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("mask", "dtype"), list(itertools.product(("causal", "full"), ("float32", "float16")))
)
def test_stated_bytes_and_peak_are_what_the_operators_move(
    shape: dict[str, Any], mask: str, dtype: str
) -> None:
    case = Case.from_dict(
        {
            "implementation": "naive",
            "num_heads": 2,
            "head_dim": 16,
            "mask": {"name": mask},
            "dtype": dtype,
            **shape,
        }
    )
    counts = count_call(build_workload(case))
    cost = get_implementation("naive").cost(case.problem())
    assert counts.operand_bytes == cost.operand_bytes
    assert counts.flops == cost.executed_flops
    assert cost.peak_bytes is not None
    assert 0 <= counts.call_peak_bytes - counts.resident_bytes - cost.peak_bytes < 8 * 16 * (129 + 129)
    assert predict_counts(case).operand_bytes == counts.operand_bytes


def test_a_hand_computed_chain() -> None:
    """B 1, H 2, n 8, d 4, float32: q, k, v and out hold 256 bytes each, the scores 512, the mask 64."""
    case = Case.from_dict({"implementation": "naive", "seqlen_q": 8, "num_heads": 2, "head_dim": 4})
    scaling = 256 + 256
    first_product = 256 + 256 + 512
    positions = 8 * (6 * 8 + 2 * 8 + 3)  # two ranges and the shift: int64
    mask = 64 + (64 + 64) + (512 + 64 + 512)  # compare, invert, fill
    softmax = 512 + 512
    second_product = 512 + 256 + 256
    assert count_call(build_workload(case)).operand_bytes == (
        scaling + first_product + positions + mask + softmax + second_product
    )


def test_sixteen_bit_scores_do_not_overflow() -> None:
    """q = k = 64 everywhere: the raw dot is 262144, above float16's largest number.

    The scaled logit 32768 is not.
    """
    problem = Problem(seqlen_q=4, num_heads=1, head_dim=64, dtype="float16", mask=Full())
    q = torch.full((1, 1, 4, 64), 64.0, dtype=torch.float16)
    v = torch.randn(1, 1, 4, 64, generator=torch.Generator().manual_seed(0)).half()
    out = get_implementation("naive").attention(q, q, v, problem=problem).out
    torch.testing.assert_close(
        out, v.float().mean(dim=2, keepdim=True).half().expand_as(out), rtol=2e-3, atol=2e-3
    )


def test_chains_that_are_not_stated_are_none() -> None:
    cost = get_implementation("naive").cost
    assert cost(Problem(seqlen_q=8, mask=Causal(), key_lengths=(3,))).operand_bytes is None
    assert cost(Problem(seqlen_q=8, mode="fwd_bwd")).operand_bytes is None
