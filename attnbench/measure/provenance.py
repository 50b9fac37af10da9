"""What ran, from which source. In: an implementation and what it is asked. Out: the section of a record."""

import hashlib
import inspect
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch

from attnbench.contract.implementation import Implementation
from attnbench.contract.problem import Problem
from attnbench.plan.settings import MeasureSettings

from .record import Provenance


def provenance_of(implementation: Implementation, problem: Problem, settings: MeasureSettings) -> Provenance:
    """Return what is known before anything runs."""
    return Provenance(
        semantics=implementation.semantics.name,
        kernels=[spec.name for spec in implementation.kernels_for(problem)] or None,
        source_hash=source_hash(implementation),
        seed=settings.seed,
        threads=torch.get_num_threads(),
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def source_hash(implementation: Implementation) -> str | None:
    """Hash the file that defines the implementation; records of another source are not comparable."""
    function = inspect.unwrap(getattr(implementation.attention, "func", implementation.attention))
    module = sys.modules.get(getattr(function, "__module__", ""))
    with suppress(OSError, TypeError):
        return hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest()[:16]  # type: ignore[union-attr]
    return None
