"""What `attnbench doctor --ceilings` shows: rates that were measured, beside those of the data sheet. In: the
name of a device. Out: ceilings, and rows of a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnbench.contract.errors import UsageError

Plain = dict[str, Any]
Row = dict[str, str]
_PRODUCT = "matmul_flops_per_s."
"""What the name of a product's rate begins with among those that are unavailable."""


def ceilings_of(device: str | None) -> Plain:
    """Measure the ceilings of a device as a run does: in a worker, with a run's threads.

    Raises:
        UsageError: no such device, or nothing could be measured.
    """
    from attnbench.contract.problem import DTYPE_BYTES
    from attnbench.device.hardware import default_threads, require_device
    from attnbench.plan.devices import device_kind
    from attnbench.run.executor import ExecutorSettings, LocalExecutor
    from attnbench.run.launch import memory_limits

    kind = device_kind(device or "auto")
    gpu = require_device(device or kind)
    settings = ExecutorSettings(
        threads=default_threads()[0],
        memory_limits=memory_limits(None, gpu),
        visible_gpu=None if gpu is None else gpu.uuid,
        preload=("torch",),
    )
    with LocalExecutor(settings) as executor:
        found = executor.measure_ceilings({kind: list(DTYPE_BYTES)}, {})[kind]
    if "ceilings" in found.get("unavailable", {}):
        raise UsageError(f"the ceilings of {kind} can't be measured: {found['unavailable']['ceilings']}")
    return {"device": device or kind, **found}


def ceiling_rows(found: Plain) -> Iterator[Row]:
    """Return a row a rate: what was measured, what the data sheet says, and which part of it was reached."""
    sheet = found.get("datasheet") or {}
    printed = sheet.get("matmul_flops_per_s", {})
    measured = found.get("matmul_flops_per_s", {})
    missing = found.get("unavailable", {})
    failed = [name.removeprefix(_PRODUCT) for name in missing if name.startswith(_PRODUCT)]
    for name in dict.fromkeys([*measured, *printed, *failed]):
        why = missing.get(_PRODUCT + name)
        yield _row(f"matmul {name}", measured.get(name), "FLOP/s", printed.get(name), why)
    bandwidth = sheet.get("memory_bytes_per_s")
    for name in ("copy", "triad", "read"):
        why = missing.get("copy_bytes_per_s")
        yield _row(name, found.get(f"{name}_bytes_per_s"), "B/s", bandwidth, why)
    yield _row("exp2", found.get("exp2_per_s"), "/s", None, missing.get("exp2_per_s"))
    overhead = found.get("launch_overhead_us")
    row = _row("launch overhead", None, "", None, missing.get("launch_overhead_us"))
    yield row if overhead is None else row | {"measured": f"{overhead:.2f} µs"}


def _row(name: str, measured: float | None, unit: str, printed: float | None, why: str | None) -> Row:
    from attnbench.render.numbers import format_count, format_percent

    row = {"ceiling": name, "measured": "–", "data sheet": "", "reached": "", "remark": why or ""}
    if measured is not None:
        row["measured"] = format_count(int(measured)) + unit
    if printed is not None:
        row["data sheet"] = format_count(int(printed)) + unit
    if measured is not None and printed is not None:
        row["reached"] = format_percent(measured / printed)
    return row
