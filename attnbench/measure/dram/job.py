"""What is counted: one call, here or, from plain data, in another process. In: a workload. Out: a job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from attnbench.measure.cuda_timer import FLUSH_BYTES
from attnbench.measure.provenance import configurations
from attnbench.measure.workload import Workload, build_workload
from attnbench.plan.case import Case

KNOWN_ROWS, KNOWN_COLUMNS = 8192, 14336
"""More than any L2 cache holds."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One call: ``prepare()``, which does not count, before each ``call()``, both in ``environment()``."""

    spec: dict[str, Any]
    """Plain data from which ``job_from`` makes the same in another process."""
    device: torch.device
    prepare: Callable[[], None]
    call: Callable[[], Any]
    environment: Callable[[], AbstractContextManager[None]] = nullcontext
    settle: Callable[[], Any] = lambda: None
    """Finds out what the call is launched with, before it is called."""
    cold: bool = True
    """Whether the call finds nothing in the L2 cache."""
    repeatable: bool = True
    """Whether calls may follow each other without ``prepare``."""
    resident_bytes: int = 0
    """What the call's tensors hold."""
    keep: Callable[[str, str], None] = lambda name, text: None
    """Is given what a tool said, as it said it, with a name for a file; judged or parsed afterwards."""

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def warm_up(self) -> None:
        """Compile, tune and allocate, so that the next call does nothing but its work."""
        with self.environment():
            self.settle()
            for _ in range(2):
                self.prepare()
                self.call()
        self.synchronize()

    def flush(self) -> None:
        """Fill the L2 cache with other data where the call is to find none of its own.

        The data are read: lines that were written would go to memory during the call and count as its own.
        """
        if self.cold and self.device.type == "cuda":
            _other_data(self.device).amax()
        self.synchronize()


@cache
def _other_data(device: torch.device) -> torch.Tensor:
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    return torch.zeros(max(2 * l2_bytes, FLUSH_BYTES) // 4, dtype=torch.int32, device=device)


def case_job(workload: Workload) -> Job:
    """Return the call of a case."""
    return Job(
        spec={"case": workload.case.to_dict(), "seed": workload.seed},
        device=workload.device,
        prepare=workload.prepare,
        call=workload.call,
        environment=workload.environment,
        settle=lambda: configurations(workload.attentions),
        cold=workload.case.cache == "cold",
        repeatable=workload.repeatable,
        resident_bytes=sum(x.numel() * x.element_size() for x in workload.resident()),
    )


def known_job(device: str, rows: int = KNOWN_ROWS) -> Job:
    """Return a call of known traffic: it reads a float16 matrix once and writes another."""
    x = torch.randn(rows, KNOWN_COLUMNS, device=device).to(torch.float16)
    out = torch.empty_like(x)
    return Job(
        spec={"known": device, "rows": rows},
        device=x.device,
        prepare=lambda: None,
        call=lambda: torch.mul(x, 2, out=out),
        resident_bytes=2 * x.nbytes,
    )


def job_from(spec: dict[str, Any]) -> Job:
    """Make the job that a spec describes."""
    if "known" in spec:
        return known_job(spec["known"], spec["rows"])
    # As in the process that checked the case: float32 products are float32's own.
    torch.backends.cuda.matmul.allow_tf32 = False
    return case_job(build_workload(Case.from_dict(spec["case"]), seed=spec["seed"]))
