"""Numerical agreement: how far a result is from the float64 truth, and whether that is within its budget. In:
tensors. Out: a section.

Budget for one tensor, with m = 2 for out and lse, 3 for gradients, against the semantics' plain computation
in the same dtype:

max|x - truth| <= min(m · baseline error, a-priori bound) + max(2 eps · max|truth|, 2e-6)

and, where max|truth| > 2e-6, ‖x - truth‖ / ‖truth‖ at most the larger of m times the baseline's own and a
floor by dtype. -inf agrees with -inf in ``lse``; any other value that is not finite, on either side, fails.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from attnbench.contract.evaluation import Truth

from .record import Agreement, Error

ABSOLUTE_FLOOR = 2e-6
RMS_FLOORS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
MULTIPLES = {"out": 2, "lse": 2}
GRADIENT_MULTIPLE = 3


def _rms_relative(difference: Tensor, reference: Tensor) -> float:
    total = float(torch.linalg.vector_norm(reference))
    distance = float(torch.linalg.vector_norm(difference))
    return distance / total if total else (0.0 if distance == 0 else math.inf)


def grade(
    actual: Tensor,
    reference: Tensor,
    plain: Tensor,
    *,
    name: str = "out",
    dtype: torch.dtype | None = None,
    bound: float = math.inf,
) -> Error:
    """Grade one tensor against the float64 ``reference`` of the same shape.

    Args:
        actual: the result, any shape.
        reference: the truth in float64.
        plain: the baseline's result, which sets the budget.
        name: ``out``, ``lse``, or a gradient; decides the multiple and whether -inf may agree.
        dtype: of the case; default ``actual.dtype``.
        bound: a-priori bound on the error.

    Returns:
        Errors, budgets, and the verdict ``ok``, ``over_budget``, ``nonfinite`` or ``wrong_shape``.
    """
    if actual.shape != reference.shape:
        return Error(verdict="wrong_shape")
    dtype = dtype or actual.dtype
    x, truth, base = (tensor.detach().double().cpu() for tensor in (actual, reference, plain))
    agree = (
        (x == -math.inf) & (truth == -math.inf) if name == "lse" else torch.zeros_like(x, dtype=torch.bool)
    )
    usable = torch.isfinite(x) & torch.isfinite(truth)
    nonfinite = int((~torch.isfinite(x) & ~agree).sum())
    nonfinite_reference = int((~torch.isfinite(truth) & ~agree).sum())
    base_usable = usable & torch.isfinite(base)
    x, plain_truth, base, truth = x[usable], truth[base_usable], base[base_usable], truth[usable]

    multiple = MULTIPLES.get(name, GRADIENT_MULTIPLE)
    largest = float(truth.abs().max()) if truth.numel() else 0.0
    base_error = float((base - plain_truth).abs().max()) if base.numel() else 0.0
    budget = min(multiple * base_error, bound) + max(2 * torch.finfo(dtype).eps * largest, ABSOLUTE_FLOOR)
    max_abs_error = float((x - truth).abs().max()) if truth.numel() else 0.0
    used = max_abs_error / budget
    rms = _rms_relative(x - truth, truth)
    rms_budget = None
    if largest > ABSOLUTE_FLOOR:
        rms_budget = max(multiple * _rms_relative(base - plain_truth, plain_truth), RMS_FLOORS[dtype])
        used = max(used, rms / rms_budget)
    verdict = "ok" if used <= 1 else "over_budget"
    if nonfinite or nonfinite_reference:
        verdict = "nonfinite"
    return Error(
        max_abs_error=max_abs_error,
        rms_relative_error=rms if math.isfinite(rms) else None,
        budget=budget,
        rms_budget=rms_budget,
        budget_used=used if math.isfinite(used) else None,
        nonfinite=nonfinite,
        nonfinite_reference=nonfinite_reference,
        verdict=verdict,
    )


def worst_verdict(parts: Mapping[str, Error]) -> tuple[str, str]:
    """Return the name and verdict of the worst part.

    Anything but ``ok`` first, then the largest share of its budget.
    """
    name = max(parts, key=lambda key: (parts[key].verdict != "ok", parts[key].budget_used or 0.0))
    return name, parts[name].verdict or "ok"


def joined(of_out: Error, verdict: str, **others: Any) -> Agreement:
    """Return the section whose own fields are those of ``out`` and whose verdict is that of all parts."""
    return Agreement(**{**msgspec.structs.asdict(of_out), "verdict": verdict, **others})


def _take(tensor: Tensor | None, rows: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or rows is None else tensor[:, :, rows.to(tensor.device)]


def grade_outputs(
    out: Tensor,
    lse: Tensor | None,
    gradients: Mapping[str, Tensor],
    truth: Truth,
    plain: Truth,
    *,
    rows: Tensor | None = None,
    bounds: Mapping[str, float] | None = None,
    computed: Tensor | None = None,
) -> Agreement:
    """Grade an attention's out, lse and gradients (``dq``, ``dk``, ``dv``) on the rows for which the truth is
    known.

    Args:
        out: ``[B, H, Sq, Dv]``.
        lse: ``[B, H, Sq]`` or None.
        gradients: by name, each in the shape of its input.
        truth: float64, out and lse on ``rows`` alone.
        plain: the baseline's, likewise.
        rows: query rows that the truth holds; None for all.
        bounds: a-priori bounds by name.
        computed: ``[B, H, Sq]``, which rows were computed at all (sampled programs); None for all.
    """
    bounds = bounds or {}
    keep = _take(computed, rows)

    def part(name: str, actual: Tensor | None, reference: Tensor | None, base: Tensor | None) -> Error | None:
        if actual is None or reference is None or base is None:
            return None
        if keep is not None and name in ("out", "lse"):
            actual, reference, base = (
                actual[keep],
                reference[keep.to(reference.device)],
                base[keep.to(base.device)],
            )
        return grade(actual, reference, base, name=name, dtype=out.dtype, bound=bounds.get(name, math.inf))

    parts = {
        "out": part("out", _take(out, rows), truth.out, plain.out),
        "lse": part("lse", _take(lse, rows), truth.lse, plain.lse),
        **{
            name: part(name, gradients.get(name), getattr(truth, name), getattr(plain, name))
            for name in gradients
        },
    }
    graded = {name: error for name, error in parts.items() if error is not None}
    _, verdict = worst_verdict(graded)
    of_out = graded.pop("out")
    of_lse = graded.pop("lse", None)
    checked = (
        truth.out.shape[0] * truth.out.shape[1] * truth.out.shape[2] if keep is None else int(keep.sum())
    )
    return joined(of_out, verdict, lse=of_lse, gradients=graded or None, rows_checked=checked)
