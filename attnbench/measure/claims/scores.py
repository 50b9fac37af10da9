"""Sizes of scores and what softmax makes of them. In: widths. Out: their variance, entropies, gradients.

Components of q and k are independent N(0, 1); everything is in float64.
"""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor

from attnbench.model.weights import generator_for

from .growth import secant


def score_statistics(
    *, d: Sequence[int], n: int, scale_power: float = -0.5, seed: int = 0
) -> dict[str, float]:
    """Return of ``n`` queries and keys, at the last of the widths ``d`` unless it is a power:

    ``variance_over_d`` of q·k and ``power_of_d`` of that variance; and of the softmax of q·k, ``raw``, and of
    q·k · d^scale_power, ``scaled``: ``entropy`` over the largest possible, log n, and ``gradient``, the mean
    trace of a row's Jacobian (0: no score changes any weight; at most 1 - 1/n).
    """
    variances = {}
    for width in d:
        q, k = (_normal(n, width, seed, name) for name in ("q", "k"))
        scores = q @ k.T
        variances[width] = scores.var().item()
    width = d[-1]
    found = {
        "variance_over_d": variances[width] / width,
        "power_of_d": secant((d[0], variances[d[0]]), (width, variances[width])),
    }
    for name, logits in (("raw", scores), ("scaled", scores * float(width) ** scale_power)):
        weights = logits.softmax(dim=-1)
        found[f"{name}_entropy"] = _entropy(weights) / log(n)
        found[f"{name}_gradient"] = _jacobian_trace(logits, seed)
    return found


def _normal(rows: int, width: int, seed: int, name: str) -> Tensor:
    return torch.randn(rows, width, generator=generator_for(seed, name), dtype=torch.float64)


def _entropy(weights: Tensor) -> float:
    """Mean entropy of the rows, in nats."""
    return float(torch.special.entr(weights).sum(dim=-1).mean())


def _jacobian_trace(logits: Tensor, seed: int) -> float:
    """Mean of ``gᵀ J g`` over rows, g random signs, J the Jacobian of softmax: its trace (Hutchinson)."""
    leaf = logits.detach().requires_grad_()
    signs = torch.randint(0, 2, leaf.shape, generator=generator_for(seed, "signs")).to(leaf.dtype) * 2 - 1
    (product,) = torch.autograd.grad(leaf.softmax(dim=-1), leaf, signs)
    return float((product * signs).sum(dim=-1).mean())
