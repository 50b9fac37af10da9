"""DRAM bytes in a record. In: a workload that was checked and timed. Out: fields of its traffic."""

from pathlib import Path

import torch

from attnbench.contract.cost import compulsory_bytes, compulsory_read_bytes
from attnbench.measure.record import Record, Traffic
from attnbench.measure.workload import Workload

from .audit import verdict
from .choose import Choice, backends_named, choose
from .job import case_job

FIELD = "traffic.dram_bytes"


def fill_dram(
    workload: Workload, record: Record, until: float, scratch: Path | None, only: str | None = None
) -> None:
    """Count, and write what came of it into the record.

    Args:
        workload: on a GPU; elsewhere nothing is done, and the record says why already.
        record: with its traffic so far.
        until: the value of ``time.monotonic()`` by which to be done.
        scratch: folder of the run, where what can't work is remembered from case to case.
        only: the name of the backend that is to count, instead of the first that works.
    """
    if workload.device.type != "cuda":
        return
    record.traffic = record.traffic or Traffic()
    torch.cuda.empty_cache()  # room for the same call in another process
    notes = None if scratch is None else scratch / "dram"
    choice = choose(case_job(workload), until, notes=notes, backends=backends_named(only))
    write(choice, record, record.traffic, _least_read_bytes(workload))


def write(choice: Choice, record: Record, section: Traffic, least_read_bytes: int | None) -> None:
    """Write bytes, backend and verdict, or the reasons why there are none."""
    found = choice.found
    if found is None:
        record.unavailable[FIELD] = "; ".join(f"{name}: {why}" for name, why in choice.passed_over.items())
        return
    if found.total is None:
        record.unavailable[FIELD] = f"{choice.backend} counted not all of them"
    else:
        record.unavailable.pop(FIELD, None)
    section.dram_bytes, section.dram_read_bytes, section.dram_write_bytes = (
        found.total,
        found.read,
        found.write,
    )
    section.dram_backend = f"{choice.backend} ({found.note})" if found.note else choice.backend
    section.dram_kernels = [{"kernel": name, **one.to_dict()} for name, one in found.kernels] or None
    section.dram_verdict = verdict(found, least_read_bytes)
    if choice.passed_over and record.provenance is not None:
        record.provenance.dram_passed_over = choice.passed_over


def _least_read_bytes(workload: Workload) -> int | None:
    """What has to come from memory if nothing of it is in the cache; only attention has a closed form.

    What needs less than all keys and values, as a state does, does not say which part of it is read.
    """
    if workload.level != "attention" or workload.case.cache != "cold":
        return None
    if workload.attentions[0].cost.compulsory_bytes < compulsory_bytes(workload.problem):
        return None
    return compulsory_read_bytes(workload.problem)
