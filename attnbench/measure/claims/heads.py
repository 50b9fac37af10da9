"""Several narrow heads against one wide head. In: an implementation, a width. Out: ratios of what they cost.

Counted on fake tensors.
"""

from typing import Any

from torch import Tensor

from attnbench.measure.watching import OperatorWatch
from attnbench.plan.case import Case

from .cases import counted, watched
from .counts import LargestTensor

EXPONENTIATING = frozenset({"aten.exp", "aten.exp2", "aten._softmax", "aten._safe_softmax"})
"""Operators that evaluate one exponential for each element of their result."""


def heads_against_one(*, implementation: str, num_heads: int, dim: int, seqlen: int) -> dict[str, float]:
    """Return what ``num_heads`` heads of ``dim / num_heads`` need, over what one head of ``dim`` needs:
    ``flops_ratio`` of the matmuls, ``exponentials_ratio``, and ``scores_ratio`` of the bytes of scores.
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
    exponentials = [watched(case, Exponentials()).count for case in (many, one)]
    scores = [watched(case, LargestTensor()).size_bytes for case in (many, one)]
    return {
        "flops_ratio": counted(many).flops / counted(one).flops,
        "exponentials_ratio": exponentials[0] / exponentials[1],
        "scores_ratio": scores[0] / scores[1],
    }


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
