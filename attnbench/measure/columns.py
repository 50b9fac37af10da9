"""Gradients of sampled keys under the whole upstream gradient. In: a workload whose sampled rows agree. Out:
two graded parts, or why there are none.

On sampled rows the upstream gradient is zero elsewhere, so that what other rows add to dk and dv goes unseen.
Here every row adds: the call runs once more, whole, and dk and dv of some keys are compared. Their truth
takes each row's out and lse from the implementation (``contract/columns.py``), whose sampled rows agree with
float64; what is wrong with them elsewhere is wrong in the truth too.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attnbench.contract.columns import ColumnFunction, column_gradients
from attnbench.contract.hidden import zero_hidden
from attnbench.model.weights import generator_for
from attnbench.plan.settings import MeasureSettings

from .agreement import grade, worst_verdict
from .baseline_error import affordable_roundings, farthest
from .record import Agreement, Error
from .truth import affordable, sample_rows
from .workload import Outputs, Workload

PAIRS = 1 << 21
"""Scores that the truth of columns may cost: about 0.5 s on one core."""


def columns_to_check(workload: Workload, settings: MeasureSettings) -> Tensor:
    """Return the keys whose gradients are compared, sorted."""
    p = workload.problem
    limit = affordable(settings.reference_rows, p.pairs(), p.seqlen_k, PAIRS)
    chosen = sample_rows(p.seqlen_k, limit, settings.seed)
    return torch.arange(p.seqlen_k) if chosen is None else chosen


def fill_columns(
    workload: Workload,
    settings: MeasureSettings,
    grade_lse: Callable[[Tensor], Error] | None,
    rows: Tensor | None,
    section: Agreement,
) -> str | None:
    """Call once more under the whole upstream gradient, and grade ``dk`` and ``dv`` of sampled keys.

    Where the truth is of all ``rows`` (None), all keys have been compared already.

    Args:
        workload: at levels other than ``attention``, and without gradients, there is nothing to do.
        settings: how many keys at most, and the seed that chooses them.
        grade_lse: compares an lse ``[B, H, Sq]`` with the truth on sampled rows; None if there is none.
        rows: query rows of the truth.
        section: gets ``columns``, ``columns_checked`` and their verdict; what does not agree stays as it is.

    Returns:
        Why sampled keys could not be compared, if they had to be.
    """
    p, semantics = workload.problem, workload.implementation.semantics
    if workload.level != "attention" or not p.needs_gradients or section.verdict != "ok":
        return None
    if rows is None:
        section.columns_checked = p.batch * p.num_kv_heads * p.seqlen_k
        return None
    if semantics.columns is None or grade_lse is None:
        return f"{semantics.name} has no lse, by which the gradients of sampled keys are checked"
    if "lse" not in workload.implementation.supports:
        return "the implementation gives no lse, by which the gradients of sampled keys are checked"
    with workload.environment():
        workload.prepare()
        outputs = workload.call()
    lse = _lse_of(workload) if outputs.lse is None else outputs.lse
    of_lse = grade_lse(lse)
    if of_lse.verdict != "ok":
        return f"the lse that is to check the gradients of sampled keys does not agree: {of_lse.verdict}"
    columns = columns_to_check(workload, settings)
    section.columns = _graded(workload, settings, semantics.columns, columns, outputs, lse.detach())
    section.columns_checked = p.batch * p.num_kv_heads * columns.numel()
    section.verdict = worst_verdict(section.columns)[1]
    return None


def _lse_of(workload: Workload) -> Tensor:
    """Return the lse of a forward pass that is asked for it."""
    p = workload.problem
    asked = p.replace(mode="fwd", options={**dict(p.options), "return_lse": True})
    q, k, v = (workload.inputs[name].detach() for name in ("q", "k", "v"))
    with torch.no_grad():
        lse = workload.implementation.attention(q, k, v, problem=asked, params=workload.params).lse
    if lse is None:
        raise TypeError("attention() supports lse, and returned none though the problem asks for it")
    return lse


def _graded(
    workload: Workload,
    settings: MeasureSettings,
    function: ColumnFunction,
    columns: Tensor,
    outputs: Outputs,
    lse: Tensor,
) -> dict[str, Error]:
    p = workload.problem
    q, k, v, grad_out = (workload.inputs[name].detach() for name in ("q", "k", "v", "grad_out"))
    dtype = getattr(torch, p.dtype)
    bounds: dict[str, float] = {}
    if workload.implementation.semantics.bound is not None:
        shown_k, shown_v = zero_hidden(k, v, p)
        bounds = workload.implementation.semantics.bound(q, shown_k, shown_v, grad_out, p)

    evaluated = partial(
        column_gradients, function, q, k, v, outputs.out, lse, grad_out, problem=p, columns=columns
    )

    def plainly(rounding: int) -> dict[str, Tensor]:
        # out and lse are known to half an ulp, and so is the truth that is made of them: the baseline is
        # given statistics that are off by as much, so that its error holds what is unknown of the truth.
        off = partial(_within_half_an_ulp, generator=generator_for(settings.seed + rounding, "rounding"))
        return evaluated(dtype=dtype, known=off, rounding=rounding)._asdict()

    truth = evaluated(dtype=torch.float64)._asdict()
    roundings = affordable_roundings(p.pairs() * columns.numel() // max(1, p.seqlen_k))
    plain = farthest(plainly, truth, dtype=dtype, most=roundings)
    gradients = outputs.gradients or {}
    graded = {}
    for name, exact in truth.items():
        actual = gradients.get(name[1:])
        graded[name] = (
            Error(verdict="missing")
            if actual is None
            else grade(
                actual[:, :, columns.to(actual.device)],
                exact,
                plain[name],
                name=name,
                dtype=dtype,
                bound=bounds.get(name, math.inf),
            )
        )
    return graded


def _within_half_an_ulp(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return x, in float32 or better, off by a random part of the rounding of its dtype."""
    half_ulp = torch.finfo(x.dtype).eps / 2
    wide = torch.promote_types(x.dtype, torch.float32)
    noise = torch.rand(x.shape, generator=generator, dtype=wide).to(x.device)
    return x.to(wide) * (1 + half_ulp * (2 * noise - 1))
