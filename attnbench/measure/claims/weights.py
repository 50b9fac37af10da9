"""Rows of the weights and of the output. In: implementations by name. Out: sums of rows, numbers of rows."""

from collections.abc import Sequence

import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import require_support
from attnbench.contract.masks import mask_from
from attnbench.contract.problem import Problem
from attnbench.measure.inputs import make_inputs


def row_sums(
    *, implementations: Sequence[str], n: int, masks: Sequence[str], dtype: str = "float32"
) -> dict[str, float]:
    """Return ``furthest_from_1``: how far the sum of any row's weights lies from 1.

    With values that are all 1, a row of the output is the sum of its weights.
    """
    furthest = 0.0
    for name in implementations:
        core = get_implementation(name)
        for mask in masks:
            problem = Problem(seqlen_q=n, num_heads=2, dtype=dtype, mask=mask_from(mask))
            require_support(core, problem)
            inputs = make_inputs(problem)
            values = torch.ones_like(inputs["v"])
            out = core.attention(inputs["q"], inputs["k"], values, problem=problem).out
            furthest = max(furthest, (out.double() - 1).abs().max().item())
    return {"furthest_from_1": furthest}


def output_rows(*, implementations: Sequence[str], lengths: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return ``least`` and ``most`` rows of an output for each query, over pairs ``(queries, keys)``."""
    ratios = []
    for name in implementations:
        core = get_implementation(name)
        for seqlen_q, seqlen_k in lengths:
            problem = Problem(seqlen_q=seqlen_q, seqlen_k=seqlen_k, num_heads=2, mask=mask_from("full"))
            require_support(core, problem)
            inputs = make_inputs(problem)
            out = core.attention(inputs["q"], inputs["k"], inputs["v"], problem=problem).out
            ratios.append(out.shape[2] / seqlen_q)
    return {"least": min(ratios), "most": max(ratios)}
