"""What ran, from which source. In: an implementation and what it is asked. Out: the section of a record."""

import hashlib
import inspect
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from attnbench.contract.implementation import Implementation
from attnbench.device.limits import allowed_cores, in_ranges
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

from .attentions import Attention
from .record import Provenance


def provenance_of(case: Case, attentions: Sequence[Attention], settings: MeasureSettings) -> Provenance:
    """Return what is known before anything runs."""
    implementation = attentions[0].implementation
    kernels = (spec.name for one in attentions for spec in one.implementation.kernels_for(one.asked))
    crossing = [one.implementation.name for one in attentions if one.place == "cross"]
    return Provenance(
        architecture=None if case.level == "attention" else case.config().architecture,
        semantics=implementation.semantics.name,
        kernels=list(dict.fromkeys(kernels)),
        cross_implementation=crossing[0] if crossing else None,
        source_hash=source_hash(implementation),
        seed=settings.seed,
        threads=torch.get_num_threads(),
        cores=in_ranges(allowed_cores()),
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def why_lacking(provenance: Provenance) -> dict[str, str]:
    """Return why fields are empty that are known before anything runs, by their names in ``unavailable``."""
    reasons = {}
    if provenance.cross_implementation is None:
        reasons["provenance.cross_implementation"] = "the case has no cross-attention"
    if provenance.source_hash is None:
        reasons["provenance.source_hash"] = "the implementation was not read from a file"
    return reasons


def why_no_analysis(provenance: Provenance, implementation: str) -> dict[str, str]:
    """Return why a record has no rows of static analysis, where kernels of its own run."""
    if not provenance.kernels:
        return {}
    return {"kernels": f"compiled ahead of time by a command of its own: attnbench kernels {implementation}"}


def configurations(attentions: Sequence[Attention]) -> dict[str, Any]:
    """Return what the kernels of each attention are launched with, by place; empty where there are none.

    A search for the fastest configuration runs now, so that neither it nor what it compiles is in a time.
    """
    if any(one.problem.device == "cuda" for one in attentions) and torch.cuda.is_available():
        torch.cuda.init()  # what is asked of a process that uses no GPU is only a prediction
    found = {one.place: dict(one.implementation.configuration(one.asked)) for one in attentions}
    return {place: kernels for place, kernels in found.items() if kernels}


def source_hash(implementation: Implementation) -> str | None:
    """Hash the file that defines the implementation; records of another source are not comparable."""
    function = inspect.unwrap(getattr(implementation.attention, "func", implementation.attention))
    module = sys.modules.get(getattr(function, "__module__", ""))
    with suppress(OSError, TypeError):
        return hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest()[:16]  # type: ignore[union-attr]
    return None
