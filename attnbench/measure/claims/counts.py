"""Counts of one attention of a given shape, plain and tiled. In: a shape. Out: FLOPs, bytes."""

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnbench.measure.watching import OperatorWatch
from attnbench.model.presets import load_preset
from attnbench.plan.case import Case, Dtype, Mode

from .cases import counted, watched


def attention_counts(
    *,
    plain: str,
    tiled: str,
    batch: int,
    num_heads: int,
    seqlen: int,
    head_dim: int,
    dtype: Dtype,
    mode: Mode,
) -> dict[str, float]:
    """Return ``plain_flops`` and ``tiled_flops`` of two implementations, every key seen."""
    found: dict[str, float] = {}
    for name, implementation in (("plain", plain), ("tiled", tiled)):
        case = Case(
            implementation=implementation,
            seqlen_q=seqlen,
            batch=batch,
            num_heads=num_heads,
            head_dim=head_dim,
            dtype=dtype,
            mode=mode,
            mask={"name": "full"},
        )
        found[f"{name}_flops"] = counted(case).flops
    return found


def largest_score_matrix(
    *, preset: str, implementation: str, seqlen: int, dtype: Dtype = "bfloat16"
) -> dict[str, float]:
    """Return ``head_bytes`` and ``layer_bytes``: the largest tensor that an operator makes in the causal
    attention of one head, and of all heads of a layer, of a preset.
    """
    config = load_preset(preset)

    def largest(num_heads: int, num_kv_heads: int) -> int:
        case = Case(
            implementation=implementation,
            seqlen_q=seqlen,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
        )
        return watched(case, LargestTensor()).size_bytes

    return {
        "head_bytes": largest(1, 1),
        "layer_bytes": largest(config.num_heads, config.num_kv_heads),
    }


class LargestTensor(OperatorWatch):
    """Keeps the size of the largest tensor that an operator has returned."""

    def __init__(self) -> None:
        """Start with none."""
        super().__init__()
        self.size_bytes = 0

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Look at the operator's results."""
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.size_bytes = max(self.size_bytes, tensor.untyped_storage().nbytes())
