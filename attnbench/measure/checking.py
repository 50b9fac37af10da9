"""Agreement of one workload with its truth. In: a workload and what its call returned.

Out: the section, or why there is none.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from attnbench.contract.semantics import SOFTMAX
from attnbench.plan.settings import MeasureSettings

from .agreement import grade, grade_outputs, joined, worst_verdict
from .inputs import inputs_key
from .record import Agreement, Error
from .reference_module import reference_bytes, reference_outputs
from .truth import Yardstick, make_yardstick, masked_gradient, sample_rows
from .workload import Outputs, Workload

GRADIENTS_KEPT = 8


def rows_to_check(workload: Workload, settings: MeasureSettings) -> Tensor | None:
    """Return the query rows whose truth is computed, None for all."""
    if workload.level != "attention":
        return None
    return sample_rows(workload.problem.seqlen_q, settings.reference_rows, settings.seed)


@contextmanager
def upstream_on(workload: Workload, rows: Tensor | None) -> Iterator[None]:
    """Keep the upstream gradient on ``rows`` alone within the block, so that the truth of those rows is
    that of all gradients.
    """
    given = workload.inputs.get("grad_out")
    if given is None or rows is None:
        yield
        return
    whole = given.clone()
    with torch.no_grad():
        given.copy_(masked_gradient(whole, rows))
        try:
            yield
        finally:
            given.copy_(whole)


def _yardstick(
    workload: Workload, settings: MeasureSettings, rows: Tensor | None, folder: Path | None
) -> Yardstick:
    return make_yardstick(
        workload.implementation.semantics,
        workload.problem,
        workload.inputs,
        rows=rows,
        params=workload.params,
        folder=folder,
        inputs_key=inputs_key(workload.problem, workload.case.inputs, seed=settings.seed),
        maker=workload.implementation.name,
    )


def _softmax_distance(
    workload: Workload, settings: MeasureSettings, rows: Tensor | None, folder: Path | None, out: Tensor
) -> float | None:
    """Return ‖out - softmax attention‖ / ‖softmax attention‖ for semantics that approximate it."""
    if workload.implementation.semantics.approximates is not SOFTMAX:
        return None
    exact = make_yardstick(
        SOFTMAX,
        workload.problem,
        workload.inputs,
        rows=rows,
        folder=folder,
        inputs_key=inputs_key(workload.problem, workload.case.inputs, seed=settings.seed),
    ).truth.out
    chosen = out if rows is None else out[:, :, rows.to(out.device)]
    size = float(torch.linalg.vector_norm(exact))
    return float(torch.linalg.vector_norm(chosen.double() - exact)) / size if size else None


def check_attention(
    workload: Workload,
    outputs: Outputs,
    settings: MeasureSettings,
    *,
    rows: Tensor | None,
    folder: Path | None,
    computed: Tensor | None = None,
) -> Agreement:
    """Grade out, lse and gradients of a core on ``rows``.

    ``computed`` ``[B, H, Sq]`` marks the rows that sampled programs computed; the others don't count.
    """
    yardstick = _yardstick(workload, settings, rows, folder)
    gradients = {f"d{name}": tensor for name, tensor in (outputs.gradients or {}).items()}
    section = grade_outputs(
        outputs.out.detach(),
        outputs.lse,
        gradients,
        yardstick.truth,
        yardstick.plain,
        rows=rows,
        bounds=yardstick.bounds,
        computed=computed,
    )
    section.inputs = workload.case.inputs
    if computed is None:
        section.softmax_distance = _softmax_distance(workload, settings, rows, folder, outputs.out.detach())
    return section


def check_module(workload: Workload, outputs: Outputs, memory_limit_bytes: int | None) -> Agreement | str:
    """Grade a block's output or a model's logits (or loss) and every gradient against the float64 twin, or
    say why not.
    """
    needed = reference_bytes(workload)
    if memory_limit_bytes is not None and needed > memory_limit_bytes:
        return f"the float64 twin needs about {needed} bytes, {memory_limit_bytes} may be used"
    truth, plain = reference_outputs(workload)
    dtype = getattr(torch, workload.case.dtype)
    parts: dict[str, Error] = {}
    for name, actual in (outputs.gradients or {}).items():
        exact, base = (twin.gradients[name] for twin in (truth, plain) if twin.gradients is not None)
        parts[name] = grade(actual, exact, base, name=name, dtype=dtype)
    of_out = grade(outputs.out, truth.out, plain.out, dtype=dtype)
    _, verdict = worst_verdict({**parts, "out": of_out})
    worst = sorted(parts, key=lambda name: -(parts[name].budget_used or math.inf))[:GRADIENTS_KEPT]
    return joined(
        of_out,
        verdict,
        gradients={name: parts[name] for name in worst} or None,
        inputs=workload.case.inputs,
        rows_checked=workload.problem.batch * workload.problem.seqlen_q,
    )


def verdict_in_words(section: Agreement) -> str:
    """Say in one line what is wrong with a result that does not agree."""
    parts: dict[str, Error] = {
        "out": Error(**{name: getattr(section, name) for name in Error.__struct_fields__})
    }
    parts["out"].verdict = (
        "nonfinite"
        if section.nonfinite or section.nonfinite_reference
        else ("ok" if (section.budget_used or 0) <= 1 and section.budget is not None else section.verdict)
    )
    parts |= {**(section.gradients or {}), **({"lse": section.lse} if section.lse else {})}
    name, verdict = worst_verdict(parts)
    worst = parts[name]
    if verdict == "over_budget":
        return (
            f"{name} is off by {worst.max_abs_error:.3g} (budget {worst.budget:.3g}), "
            f"root mean square {worst.rms_relative_error or 0:.3g} (budget {worst.rms_budget or 0:.3g})"
        )
    if verdict == "nonfinite":
        counts = worst.nonfinite, worst.nonfinite_reference
        return "{} holds {} values that are not finite, its reference {}".format(name, *counts)
    return f"{name}: {verdict}"
