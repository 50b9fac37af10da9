"""A-priori rounding bounds: how far a sound computation can be from the truth, in eps and length. In: inputs.
Out: one number a tensor.

They cap the error budgets, so that a baseline that happens to be bad cannot excuse a bad kernel. Standard
model: every stored value is off by a factor (1 + δ), |δ| <= u = eps/2 of its dtype; sums run in float32 (or
better) with u₃₂ per term. With |Δlogit| <= r a softmax weight is off by at most a factor e^{2r}.
"""

import math

import torch
from torch import Tensor

from .problem import Problem

U32 = torch.finfo(torch.float32).eps / 2


ROWS = 1 << 14
"""Rows whose norms are taken at once, since in float64 all of a long sequence would take gigabytes."""


def _largest(x: Tensor) -> float:
    """Return max|x|, without a copy."""
    return max(-float(x.min()), float(x.max())) if x.numel() else 0.0


def _largest_norm(x: Tensor) -> float:
    if not x.numel():
        return 0.0
    pieces = (torch.linalg.vector_norm(part.double(), dim=-1).max() for part in x.split(ROWS, dim=-2))
    return float(torch.stack(list(pieces)).max())


def _unit(problem: Problem) -> tuple[float, float]:
    """Unit roundoff of storage and of sums."""
    u = torch.finfo(getattr(torch, problem.dtype)).eps / 2
    return u, min(U32, u)


def softmax_bounds(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor | None, problem: Problem
) -> dict[str, float]:
    """Bound |error| of out, lse, dq, dk and dv (inputs ``[B, H or G, S, D]``, hidden slots zeroed).

    With L = scale · max‖q‖ · max‖k‖ >= |logit|: r = (3u + (D + 2) u₃₂) L, w = e^{2r} - 1 + 3u + (Sk + 2) u₃₂;
    |Δout| <= w max|v|; |Δlse| <= r + (Sk + 2) u₃₂ + u₃₂ (L + ln Sk).
    With A = Dv max|do| max|v| >= |dp| and g = w + 4u + Dv u₃₂: |Δdq| <= 4 A g scale max|k|, and summed over
    the n rows that read a key, |Δdk| <= 4 A g scale max|q| n, |Δdv| <= g max|do| n.
    """
    p = problem
    u, u32 = _unit(p)
    limit = abs(p.softmax_scale) * _largest_norm(q) * _largest_norm(k)
    r = (3 * u + (p.head_dim + 2) * u32) * limit
    weight = (math.expm1(2 * r) if 2 * r < 700 else math.inf) + 3 * u + (p.seqlen_k + 2) * u32
    lse_rounding = u32 * (p.seqlen_k + 2 + limit + math.log(max(2, p.seqlen_k)))
    bounds = {"out": weight * _largest(v), "lse": r + lse_rounding}
    if grad_out is not None:
        largest = _largest(grad_out)
        product = p.head_dim_v * largest * _largest(v)
        g = weight + 4 * u + p.head_dim_v * u32
        rows = p.seqlen_q * p.group_size
        scale = abs(p.softmax_scale)
        bounds["dq"] = 4 * product * g * scale * _largest(k)
        bounds["dk"] = 4 * product * g * scale * _largest(q) * rows
        bounds["dv"] = g * largest * rows
    return bounds


def linear_bounds(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor | None, problem: Problem
) -> dict[str, float]:
    """Bound |error| of out and dv for weights that are positive products of features: no cancellation, so no
    growth with the logits.

    w = 2 (4u + (D + Sk + 4) u₃₂): |Δout| <= w max|v|, |Δdv| <= w max|do| n. dq and dk are divided by features
    that may be arbitrarily small, so they have no bound of this kind.
    """
    p = problem
    u, u32 = _unit(p)
    w = 2 * (4 * u + (p.head_dim + p.seqlen_k + 4) * u32)
    bounds = {"out": w * _largest(v)}
    if grad_out is not None:
        bounds["dv"] = w * _largest(grad_out) * p.seqlen_q * p.group_size
    return bounds
