"""Which kernels are compiled ahead of time, and what each must be. In: rows of `attnbench kernels`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnbench.device.kernel_forms import Form
from attnbench.device.kernels import Compilers, Task, in_order
from attnbench.device.machine_code import MATRIX_KINDS
from attnbench.device.targets import targets

BASELINE = Path(__file__).with_name("baseline.json")
FORMS = [
    *(Form(head_dim=head_dim) for head_dim in (64, 128, 256)),
    Form(head_dim=128, ragged=True),
    *(Form(head_dim=head_dim, dtype="float16") for head_dim in (64, 128)),
    Form(head_dim=64, dtype="float32"),
]
SHOWN = [Form(head_dim=64), Form(head_dim=128)]
"""Of gfx942, whose kernels are shown and held to nothing but that they fit."""
ORDINARY = [Task("triton-flash", "triton-flash", "sm_90", Form(head_dim=64))]
LEAST_WIDE_PART = 0.5
"""Of the bytes that the main loop takes from global memory; the rest are statistics of rows."""


def whole_matrix(compilers: Compilers) -> list[Task]:
    """Every implementation's kernels, every target, every form."""
    nvidia = [name for name, target in targets().items() if target.backend == "cuda"]
    amd = [name for name in targets() if name not in nvidia]
    return compilers.find_tasks(None, nvidia, FORMS) + compilers.find_tasks(None, amd, SHOWN)


def compiled(compilers: Compilers, tasks: list[Task]) -> list[dict[str, Any]]:
    return in_order(tasks, dict(compilers.inspect(tasks)))


def write_baseline(rows: list[dict[str, Any]]) -> None:
    """A row a line, so that a change shows what it changes."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    BASELINE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def faults(row: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a row, in words."""
    if "error" in row:
        yield row["error"]
        return
    if row["blocks_per_sm"] < 1:
        yield f"does not fit: {row['limited_by']}"
    if not row["target"].startswith("sm_"):
        return
    kinds, loop = row["instructions"], row["main_loop"]
    if row["dtype"] == "float32":
        if set(kinds) & set(MATRIX_KINDS):
            yield "float32 on tensor cores is TF32"
        return
    if row["spill_bytes"] > spills_allowed(row):
        yield f"spills {row['spill_bytes']} bytes, {spills_allowed(row)} allowed"
    multiplies = loop is not None and set(loop) & set(MATRIX_KINDS)
    if multiplies and wide_part(loop) < LEAST_WIDE_PART:
        yield f"{wide_part(loop):.0%} of the main loop's bytes in accesses of 16: declare what 16 divides"
    if row["kernel"].startswith("flash_") and row["mode"] != "decode":
        if any("serialized" in warning for warning in row["warnings"]):
            # The skipped loop's accumulator is a constant, which ptxas sees defined while products run.
            yield "wgmma serialized: put a loop that may run zero times inside `if begin < end:`"
        if row["target"] == "sm_90" and ("hgmma" not in kinds or "mma" in kinds):
            yield "not on Hopper's tensor cores: a product needs 64 rows and four warps"
        if row["target"] == "sm_100" and "tcgen05" not in kinds:
            yield "not on Blackwell's tensor cores"


def spills_allowed(row: dict[str, Any]) -> float:
    """Return the bytes a thread that may be spilled."""
    if row["head_dim"] > 128:
        return 0 if row["kernel"] == "flash_forward_kernel" else float("inf")
    hard = row["ragged"] or row["mask"] == "sliding-window"
    return 16 if hard and row["implementation"] != "linear" else 0


def wide_part(loop: dict[str, int]) -> float:
    """Return the part of the bytes of global accesses that come 16 or more at a time, or by TMA."""
    if any(kind.startswith(("tma_", "bulk_")) for kind in loop):
        return 1.0
    accesses = [
        (int(kind.rpartition("_")[2]), count)
        for kind, count in loop.items()
        if kind.startswith(("global_", "async_copy_"))
    ]
    everything = sum(width * count for width, count in accesses)
    wide = sum(width * count for width, count in accesses if width >= 16)
    return wide / everything if everything else 1.0
