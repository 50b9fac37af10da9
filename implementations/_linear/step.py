"""A step of decoding with linear attention by its kernel, as an operator, `attnbench::linear_step`.

In: new tokens and the sums of all tokens so far. Out: their output; the sums change in place.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.implementations._shared.operators import LIBRARY, define, result, run

from .launch import step_launch
from .step_cost import step_flops
from .step_kernel import linear_step_kernel
from .tiles import LinearTile

define("linear_step(Tensor q, Tensor k, Tensor v, Tensor(a!) sums, int[] added, int[] tile) -> Tensor")


@torch.library.impl(LIBRARY, "linear_step", "CompositeExplicitAutograd")
def _step(q: Tensor, k: Tensor, v: Tensor, sums: Tensor, added: Sequence[int], tile: Sequence[int]) -> Tensor:
    """Return out ``[B, H, T, Dv]`` of T new tokens, ``added[b]`` of which go into the sums."""
    out = result(q, (*q.shape[:3], v.shape[3]), q.dtype, math.nan)
    if out.numel():
        counts = torch.tensor(added, dtype=torch.int32).to(q.device, non_blocking=True)
        run(step_launch(q, k, v, sums, out, counts, LinearTile(*tile)), linear_step_kernel, q.device)
    return out


def _shape(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[3])


torch.library.register_fake("attnbench::linear_step", _shape, lib=LIBRARY)


@register_flop_formula(torch.ops.attnbench.linear_step)
def _flops(q: Any, k: Any, v: Any, sums: Any, added: Any, tile: Any, **_: Any) -> int:
    return step_flops(q, k[1], v[3], LinearTile(*tile))
