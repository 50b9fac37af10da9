"""Agreement of one workload with its truth. In: a workload that has not run, then what its call returned.

Out: the section, or why there is none. The truth is made first, from inputs that nothing has touched.
"""

import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.contract.semantics import SOFTMAX
from attnbench.plan.settings import MeasureSettings

from .agreement import grade, grade_outputs, joined, worst_verdict
from .inputs import inputs_key
from .record import Agreement, Error
from .reference_module import reference_bytes, reference_outputs
from .truth import affordable, exact_out, make_yardstick, sample_rows
from .unchanged import changed_inputs, fingerprints
from .workload import Outputs, Workload

GRADIENTS_KEPT = 8
PAIRS = 1 << 25
"""Scores that the truth of rows may cost: some 10 s on one core with its baseline, more with gradients."""


def rows_to_check(workload: Workload, settings: MeasureSettings) -> Tensor | None:
    """Return the query rows whose truth is computed, None for all."""
    if workload.level != "attention":
        return None
    p = workload.problem
    limit = affordable(settings.reference_rows, p.pairs(), p.seqlen_q, PAIRS)
    return sample_rows(p.seqlen_q, limit, settings.seed)


@contextmanager
def upstream_on(workload: Workload, rows: Tensor | None) -> Iterator[None]:
    """Keep the upstream gradient on ``rows`` alone within the block, so that the truth of those rows is
    that of all gradients.
    """
    given = workload.inputs.get("grad_out")
    if given is None or rows is None:
        yield
        return
    whole, here = given.clone(), rows.to(given.device)
    with torch.no_grad():
        given.zero_()
        given[:, :, here] = whole[:, :, here]
        try:
            yield
        finally:
            given.copy_(whole)


class Grades(NamedTuple):
    """How results are graded against one truth."""

    everything: Callable[[Outputs, Tensor | None], Agreement]
    """Grades what the call returned; the tensor ``[B, H, Sq]`` marks the computed rows, None for all."""
    out_alone: Callable[[Tensor], Error]
    """Grades the output of a later call."""
    lse_alone: Callable[[Tensor], Error] | None = None
    """Grades an lse ``[B, H, Sq]``, where the semantics have one."""


class Check(NamedTuple):
    """The truth of a workload, made before the implementation ran, and fingerprints of what it is given."""

    grades: Grades
    given: dict[str, Tensor | bytes]

    def grade(self, outputs: Outputs, computed: Tensor | None = None) -> Agreement:
        """Grade what the call returned, on the rows that were computed."""
        return self.grades.everything(outputs, computed)

    def drift(self, first: Tensor, last: Tensor) -> str | None:
        """Say what is wrong with the output of a later call, given the one that was found right."""
        if first.shape == last.shape and torch.equal(first, last):
            return None
        return self.wrong_later(last)

    def wrong_later(self, out: Tensor) -> str | None:
        """Say what is wrong with the output of a later call."""
        graded = self.grades.out_alone(out)
        if graded.verdict == "ok":
            return None
        return (
            f"a later call returned something else: {verdict_in_words(joined(graded, graded.verdict or ''))}"
        )

    def written(self, workload: Workload) -> str | None:
        """Say which inputs are no longer what they were, if any: the call wrote to them."""
        return changed_inputs(self.given, workload.inputs)


def prepare_check(
    workload: Workload,
    settings: MeasureSettings,
    *,
    rows: Tensor | None,
    folder: Path | None,
    memory_limit_bytes: int | None = None,
) -> Check | str:
    """Compute the truth of a workload that has not run yet, or say why there is none.

    Args:
        workload: its inputs are as they were drawn.
        settings: seed, and how many rows.
        rows: query rows to compare, None for all.
        folder: where cases of a run share truths.
        memory_limit_bytes: the float64 twin of a module must fit.
    """
    if workload.level != "attention":
        needed = reference_bytes(workload)
        if memory_limit_bytes is not None and needed > memory_limit_bytes:
            return f"the float64 twin needs about {needed} bytes, {memory_limit_bytes} bytes may be used"
    grade_it = _attention_check if workload.level == "attention" else _module_check
    return Check(grade_it(workload, settings, rows, folder), fingerprints(workload.inputs))


def crc32_of(out: Tensor) -> int:
    """Return the CRC-32 of an output's bytes: whether a later launch gave the very same, told in 4 bytes."""
    return zlib.crc32(out.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def _attention_check(
    workload: Workload, settings: MeasureSettings, rows: Tensor | None, folder: Path | None
) -> Grades:
    """Compare out, lse and gradients of a core with the semantics' definition."""
    problem, semantics = workload.problem, workload.implementation.semantics

    inputs, key = workload.inputs, inputs_key(problem, workload.case.inputs, seed=settings.seed)
    own = make_yardstick(
        semantics, problem, inputs, rows=rows, params=workload.params, folder=folder, inputs_key=key
    )
    softmax = None
    if semantics.approximates is SOFTMAX:
        # Only its out is needed: that of the forward mode, whatever the options.
        plain_softmax = problem.replace(mode="fwd" if problem.needs_gradients else problem.mode, options={})
        key = inputs_key(plain_softmax, workload.case.inputs, seed=settings.seed)
        softmax = exact_out(SOFTMAX, plain_softmax, inputs, rows=rows, folder=folder, inputs_key=key)

    def graded(outputs: Outputs, computed: Tensor | None) -> Agreement:
        section = grade_outputs(
            outputs.out.detach(),
            outputs.lse,
            {f"d{name}": tensor for name, tensor in (outputs.gradients or {}).items()},
            own.truth,
            own.plain,
            dtype=getattr(torch, problem.dtype),
            rows=rows,
            bounds=own.bounds,
            computed=computed,
            lse_expected=bool(problem.option("return_lse", False)),
        )
        section.inputs = workload.case.inputs
        if softmax is not None and computed is None and section.verdict != "wrong_shape":
            section.softmax_distance = _distance(outputs.out.detach(), softmax, rows)
        return section

    def out_alone(out: Tensor) -> Error:
        chosen = out if rows is None or out.dim() != 4 else out[:, :, rows.to(out.device)]
        dtype, bound = getattr(torch, problem.dtype), own.bounds.get("out", math.inf)
        return grade(chosen.detach(), own.truth.out, own.plain.out, dtype=dtype, bound=bound)

    exact, plain = own.truth.lse, own.plain.lse
    if exact is None or plain is None:
        return Grades(graded, out_alone)

    def lse_alone(lse: Tensor) -> Error:
        chosen = (lse if rows is None else lse[:, :, rows.to(lse.device)]).detach()
        dtype, bound = getattr(torch, problem.dtype), own.bounds.get("lse", math.inf)
        return grade(chosen, exact, plain, name="lse", dtype=dtype, bound=bound)

    return Grades(graded, out_alone, lse_alone)


def _distance(out: Tensor, exact: Tensor, rows: Tensor | None) -> float | None:
    """Return ‖out - exact‖ / ‖exact‖ on the compared rows."""
    chosen = out if rows is None else out[:, :, rows.to(out.device)]
    size = float(torch.linalg.vector_norm(exact))
    return float(torch.linalg.vector_norm(chosen.double() - exact)) / size if size else None


def _module_check(
    workload: Workload, settings: MeasureSettings, rows: Tensor | None, folder: Path | None
) -> Grades:
    """Compare a block's output or a model's logits (or loss) and every gradient with the float64 twin."""
    truth, plain = reference_outputs(workload)

    def graded(outputs: Outputs, computed: Tensor | None) -> Agreement:
        parts: dict[str, Error] = {}
        for name, exact in (truth.gradients or {}).items():
            actual, base = (outputs.gradients or {}).get(name), (plain.gradients or {})[name]
            parts[name] = (
                Error(verdict="missing")
                if actual is None
                else grade(actual, exact, base, name=name, dtype=base.dtype)
            )
        of_out = grade(outputs.out, truth.out, plain.out, dtype=plain.out.dtype)
        _, verdict = worst_verdict({**parts, "out": of_out})
        worst = sorted(parts, key=lambda name: -_used(parts[name]))[:GRADIENTS_KEPT]
        return joined(
            of_out,
            verdict,
            gradients={name: parts[name] for name in worst} or None,
            inputs=workload.case.inputs,
            rows_checked=workload.problem.batch * workload.problem.seqlen_q,
        )

    return Grades(graded, lambda out: grade(out.detach(), truth.out, plain.out, dtype=plain.out.dtype))


def _used(part: Error) -> float:
    return math.inf if part.verdict != "ok" else part.budget_used or 0.0


def verdict_in_words(section: Agreement) -> str:
    """Say in one line what is wrong with a result that does not agree."""
    if section.verdict == "not_compared":
        return "none of its rows could be compared with the truth"
    parts = {**(section.gradients or {}), **({"lse": section.lse} if section.lse else {})}
    parts |= {f"{name} of sampled keys": part for name, part in (section.columns or {}).items()}
    name, verdict = worst_verdict(parts) if parts else ("out", "ok")
    worst = parts.get(name, section)
    of_out = _verdict_of_out(section, verdict)
    if of_out != "ok":
        name, verdict, worst = "out", of_out, section
    if verdict == "over_budget":
        return (
            f"{name} is off by {worst.max_abs_error:.3g} (budget {worst.budget:.3g}), "
            f"root mean square {worst.rms_relative_error or 0:.3g} (budget {worst.rms_budget or 0:.3g})"
        )
    if verdict == "nonfinite":
        counts = worst.nonfinite, worst.nonfinite_reference
        return "{} holds {} values that are not finite, its reference {}".format(name, *counts)
    if verdict == "missing":
        return f"{name} is missing"
    return f"{name}: {verdict}"


def _verdict_of_out(section: Agreement, others: str) -> str:
    """Return the verdict of out alone; the section's own is that of the worst part."""
    if section.nonfinite or section.nonfinite_reference:
        return "nonfinite"
    if (section.budget_used or 0.0) > 1:
        return "over_budget"
    return "ok" if others != "ok" else section.verdict or "ok"
