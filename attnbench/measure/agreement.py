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
from .tally import Tally

ABSOLUTE_FLOOR = 2e-6
RMS_FLOORS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
MULTIPLES = {"out": 2, "lse": 2}
GRADIENT_MULTIPLE = 3


def multiple_of(name: str) -> int:
    """Return m: how many times the baseline's error a tensor may be off by."""
    return MULTIPLES.get(name, GRADIENT_MULTIPLE)


def budget_floor(largest: float, dtype: torch.dtype) -> float:
    """Return what a budget holds however exact the baseline is, given the truth's largest element."""
    return max(2 * torch.finfo(dtype).eps * largest, ABSOLUTE_FLOOR)


def grade(
    actual: Tensor,
    reference: Tensor,
    plain: Tensor,
    *,
    name: str = "out",
    dtype: torch.dtype | None = None,
    bound: float = math.inf,
    held: Tensor | None = None,
) -> Error:
    """Grade one tensor against the float64 ``reference`` of the same shape.

    Args:
        actual: the result, any shape.
        reference: the truth in float64.
        plain: the baseline's result, which sets the budget.
        name: ``out``, ``lse``, or a gradient; decides the multiple and whether -inf may agree.
        dtype: of the case; default ``actual.dtype``.
        bound: a-priori bound on the error.
        held: booleans ``[S]`` where the truth of a ``[B, H, S, D]`` is 0 but at some positions: those that
            ``reference`` and ``plain`` hold. All others of ``actual`` are held to 0.

    Returns:
        Errors, budgets, and the verdict ``ok``, ``over_budget``, ``nonfinite``, ``wrong_shape`` or
        ``wrong_dtype``.
    """
    shape = reference.shape if held is None else (*reference.shape[:2], held.numel(), *reference.shape[3:])
    if actual.shape != shape:
        return Error(verdict="wrong_shape")
    dtype = dtype or actual.dtype
    if actual.dtype != dtype and name != "lse":
        return Error(verdict="wrong_dtype")
    found = Tally(infinite_may_agree=name == "lse")
    if held is None:
        found.add(actual, reference, plain)
    else:
        found.add_where(held, actual, reference, plain)
    multiple = multiple_of(name)
    budget = min(multiple * found.base_error, bound) + budget_floor(found.largest, dtype)
    used = found.max_abs_error / budget
    rms, rms_budget = found.rms_relative_error, None
    if found.largest > ABSOLUTE_FLOOR:
        rms_budget = max(multiple * found.base_rms_relative_error, RMS_FLOORS[dtype])
        used = max(used, rms / rms_budget)
    verdict = "ok" if used <= 1 else "over_budget"
    if found.nonfinite or found.nonfinite_reference:
        verdict = "nonfinite"
    return Error(
        max_abs_error=found.max_abs_error,
        rms_relative_error=rms if math.isfinite(rms) else None,
        budget=budget,
        rms_budget=rms_budget,
        budget_used=used if math.isfinite(used) else None,
        nonfinite=found.nonfinite,
        nonfinite_reference=found.nonfinite_reference,
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


def _marked(positions: Tensor, length: int) -> Tensor:
    """Return booleans ``[length]`` that are true at these positions."""
    marks = torch.zeros(length, dtype=torch.bool)
    marks[positions.cpu()] = True
    return marks


def grade_outputs(
    out: Tensor,
    lse: Tensor | None,
    gradients: Mapping[str, Tensor],
    truth: Truth,
    plain: Truth,
    *,
    dtype: torch.dtype | None = None,
    rows: Tensor | None = None,
    bounds: Mapping[str, float] | None = None,
    computed: Tensor | None = None,
    lse_expected: bool = False,
) -> Agreement:
    """Grade an attention's out, lse and gradients on the rows for which the truth is known.

    Everything that the truth holds must be there: a gradient that is absent is ``missing``, and so is an
    expected ``lse``. A result of which no row could be compared is ``not_compared``.

    Args:
        out: ``[B, H, Sq, Dv]``.
        lse: ``[B, H, Sq]`` or None.
        gradients: ``dq``, ``dk``, ``dv``, each in the shape of its input.
        truth: float64, out, lse and dq on ``rows`` alone, dk and dv on the keys that it says. Other gradients
            must be 0.
        plain: the baseline's, likewise.
        dtype: of the case, which out and gradients must have; default that of ``out``.
        rows: query rows that the truth holds; None for all.
        bounds: a-priori bounds by name.
        computed: ``[B, H, Sq]``, which rows were computed at all (sampled programs); None for all. Gradients
            are then not compared: they add up what other programs computed.
        lse_expected: whether the problem asks for ``lse``.
    """
    bounds, dtype = bounds or {}, dtype or out.dtype
    if out.shape[:2] != truth.out.shape[:2] or (rows is not None and out.shape[2] <= int(rows.max())):
        return Agreement(verdict="wrong_shape", rows_checked=0)
    keep = _take(computed, rows)

    held = {"dq": None if rows is None else _marked(rows, out.shape[2]), "dk": truth.keys, "dv": truth.keys}

    def part(name: str, actual: Tensor, reference: Tensor, base: Tensor) -> Error:
        if keep is not None and name in ("out", "lse") and actual.shape == reference.shape:
            actual, reference, base = (
                actual[keep],
                reference[keep.to(reference.device)],
                base[keep.to(base.device)],
            )
        bound = bounds.get(name, math.inf)
        return grade(actual, reference, base, name=name, dtype=dtype, bound=bound, held=held.get(name))

    parts: dict[str, Error] = {}
    for name, actual in (
        ("dq", gradients.get("dq")),
        ("dk", gradients.get("dk")),
        ("dv", gradients.get("dv")),
    ):
        reference, base = getattr(truth, name), getattr(plain, name)
        if reference is not None and keep is None:
            parts[name] = Error(verdict="missing") if actual is None else part(name, actual, reference, base)
    of_lse = None
    if lse is not None and truth.lse is not None and plain.lse is not None:
        of_lse = part("lse", lse if rows is None else lse[:, :, rows.to(lse.device)], truth.lse, plain.lse)
    elif lse_expected and truth.lse is not None:
        of_lse = Error(verdict="missing")
    of_out = part("out", out if rows is None else out[:, :, rows.to(out.device)], truth.out, plain.out)
    graded = {**parts, "out": of_out, **({} if of_lse is None else {"lse": of_lse})}
    _, verdict = worst_verdict(graded)
    checked = (
        truth.out.shape[0] * truth.out.shape[1] * truth.out.shape[2] if keep is None else int(keep.sum())
    )
    if checked == 0 and truth.out.numel() and verdict == "ok":
        verdict = "not_compared"
    return joined(of_out, verdict, lse=of_lse, gradients=parts or None, rows_checked=checked)
