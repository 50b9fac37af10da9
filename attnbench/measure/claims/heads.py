"""Several narrow heads against one wide head. In: an implementation, a width. Out: ratios of what they cost.

Counted on fake tensors.
"""

from typing import Any

from torch import Tensor

from attnbench.measure.counting import count_call
from attnbench.measure.watching import OperatorWatch
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case

from .counts import LargestTensor, watched

EXPONENTIATING = frozenset({"aten.exp", "aten.exp2", "aten._softmax", "aten._safe_softmax"})
"""Operators that evaluate one exponential for each element of their result."""


def heads_against_one(*, implementation: str, num_heads: int, dim: int, seqlen: int) -> dict[str, float]:
    """Return how much ``num_heads`` heads of ``dim / num_heads`` need for each that one head of ``dim`` needs:
    ``flops_ratio`` of the matmuls, ``exponentials_ratio`` and ``scores_ratio``, the bytes of the scores.
    """
    many, one = (
        Case(
            implementation=implementation,
            seqlen_q=seqlen,
            num_heads=heads,
            head_dim=dim // heads,
            mask={"name": "full"},
        )
        for heads in (num_heads, 1)
    )
    flops, exponentials, scores = (
        [count(case) for case in (many, one)] for count in (_flops, _exponentials, _score_bytes)
    )
    return {
        "flops_ratio": flops[0] / flops[1],
        "exponentials_ratio": exponentials[0] / exponentials[1],
        "scores_ratio": scores[0] / scores[1],
    }


def _flops(case: Case) -> int:
    return count_call(build_workload(case, fake=True)).flops


def _exponentials(case: Case) -> int:
    return watched(case, Exponentials()).count


def _score_bytes(case: Case) -> int:
    return watched(case, LargestTensor()).size_bytes


class Exponentials(OperatorWatch):
    """Counts the exponentials of operators that are known to evaluate them."""

    def __init__(self) -> None:
        """Start at zero."""
        super().__init__()
        self.count = 0

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count the elements of the result."""
        if str(getattr(func, "_overloadpacket", "")) in EXPONENTIATING and isinstance(out, Tensor):
            self.count += out.numel()
