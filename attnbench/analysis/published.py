"""Numbers that others published. In: the files of ``reports/published/``. Out: `PublishedTable`s, checked.

A table holds what its source prints, in the source's own unit; what the source does not say is left out. How
records are held against it: `comparison.py`.
"""

import math
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from attnbench.contract.errors import UsageError
from attnbench.device.datasheets import find_datasheet

NOT_TABLES = ("claims.toml",)
"""Files of the folder that hold something else."""
QUANTITIES = {
    "rate": ("TFLOP/s",),
    "latency": ("ms",),
    "traffic": ("GB",),
    "memory": ("GB",),
    "flops": ("GFLOP",),
    "error": ("RMSE",),
    "ratio": ("times",),
}
"""The units of each quantity, all decimal."""
MATMULS = {"fwd": 2, "bwd": 5, "fwd_bwd": 7}
"""Products that a published rate counts: backward as 2.5 times forward."""
OOM, UNKNOWN, ABOUT = "oom", "-", "~"


class PublishedTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table or figure: values of one quantity by length, for one shape on one device."""

    source: str
    read: Literal["table", "text", "figure", "commit", "thread", "secondary"]
    """How the numbers were read: of a figure's bars, in a commit, from others who copied them."""
    device: str
    device_names: tuple[str, ...] = ()
    """What NVML calls the devices that it may be; empty where that is not known."""
    mode: Literal["fwd", "bwd", "fwd_bwd", "decode"] | None = None
    mask: str | None = None
    """As reports say it: ``causal``, ``full``, ``window 1024``."""
    dtype: str | None = None
    quantity: Literal["rate", "latency", "traffic", "memory", "flops", "error", "ratio"]
    unit: str
    batch: int | None = None
    tokens: int | None = None
    """Of a batch whose rows are ``tokens / seqlen``."""
    num_heads: int | None = None
    num_kv_heads: int | None = None
    """Left out where it is ``num_heads``."""
    head_dim: int | None = None
    seqlen: tuple[int, ...] = ()
    """Of each value; empty where it is not said, and then there is one value."""
    caveat: str = ""
    values: dict[str, tuple[float | str, ...]]
    """By what was measured. A text is ``oom``, ``-`` for a value that was not read, or ``~173``."""

    @property
    def has_shape(self) -> bool:
        """Whether it says enough to be compared with a case."""
        said = (self.mode, self.mask, self.dtype, self.num_heads, self.head_dim, self.batch or self.tokens)
        return bool(self.device_names and self.seqlen) and None not in said

    def numbers(self, name: str) -> list[float | None]:
        """Return the values of a series; None where there is none."""
        return [_number(value) for value in self.values[name]]

    def rows(self, seqlen: int) -> int:
        """Return the batch at a length."""
        return self.batch or max(1, (self.tokens or 0) // seqlen)

    def flops(self, seqlen: int) -> float:
        """Return the FLOPs that a published rate counts at a length: half of all pairs where causal."""
        pairs = float(seqlen) ** 2
        kind, _, window = (self.mask or "").partition(" ")
        if kind == "causal":
            pairs /= 2
        elif kind == "window":
            pairs = seqlen * int(window) - int(window) ** 2 / 2
        matmuls = MATMULS[self.mode or "fwd"]
        return 2 * matmuls * self.rows(seqlen) * (self.num_heads or 0) * pairs * (self.head_dim or 0)

    def milliseconds(self, name: str) -> list[float | None]:
        """Return a series as times, of a table of rates or latencies."""
        if self.quantity == "latency":
            return self.numbers(name)
        return [
            None if value is None else self.flops(seqlen) / (value * 1e12) * 1e3
            for seqlen, value in zip(self.seqlen, self.numbers(name), strict=True)
        ]


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Return every table of ``reports/published/``.

    Raises:
        UsageError: a file that cannot be read, or a table that contradicts itself.
    """
    folder = files("attnbench") / "reports" / "published"
    found = sorted(
        (item for item in folder.iterdir() if item.name.endswith(".toml")), key=lambda item: item.name
    )
    return tuple(
        table
        for item in found
        if item.name not in NOT_TABLES
        for table in read_tables(item.read_text("utf-8"), item.name)
    )


def read_tables(text: str, name: str) -> list[PublishedTable]:
    """Return the tables of one file.

    Raises:
        UsageError: it is no such file, or a table contradicts itself; with the file, the place and the fault.
    """
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: {error}") from None
    if set(plain) != {"table"} or not isinstance(plain["table"], list):
        raise UsageError(f"{name}: [[table]]s are expected, and nothing else")
    tables = []
    for place, one in enumerate(plain["table"], start=1):
        try:
            table = msgspec.convert(one, PublishedTable, strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(f"{name}, table {place}: {error}") from None
        faults = _faults(table)
        if faults:
            raise UsageError(f"{name}, table {place}: {'; '.join(faults)}")
        tables.append(table)
    return tables


def _faults(table: PublishedTable) -> list[str]:
    """Return what contradicts itself."""
    t, faults = table, []
    if t.unit not in QUANTITIES[t.quantity]:
        faults.append(f"unit: {t.quantity} is in {' or '.join(QUANTITIES[t.quantity])}, not {t.unit!r}")
    if not t.source or not t.device:
        faults.append("source, device: must be said")
    if not t.values:
        faults.append("values: there are none")
    faults += [
        f"device_names: no data sheet of {name!r}" for name in t.device_names if not find_datasheet(name)
    ]
    if list(t.seqlen) != sorted(set(t.seqlen)) or any(seqlen < 1 for seqlen in t.seqlen):
        faults.append("seqlen: must be positive and increase")
    if t.batch is not None and t.tokens is not None:
        faults.append("batch, tokens: one of the two")
    sizes: Mapping[str, int | None] = {
        name: getattr(t, name) for name in ("batch", "tokens", "num_heads", "num_kv_heads", "head_dim")
    }
    faults += [
        f"{name}: must be positive" for name, value in sizes.items() if value is not None and value < 1
    ]
    for name, values in t.values.items():
        if len(values) != max(1, len(t.seqlen)):
            faults.append(f"values of {name!r}: {len(values)} for {len(t.seqlen)} lengths")
        faults += [f"values of {name!r}: {value!r} is no value" for value in values if not _is_value(value)]
    return faults


def _is_value(value: float | str) -> bool:
    number = _number(value)
    return value in (OOM, UNKNOWN) if number is None else math.isfinite(number) and number > 0


def _number(value: float | str) -> float | None:
    """Return the number; None for ``oom``, ``-`` and what is none."""
    if not isinstance(value, str):
        return float(value)
    try:
        return float(value.removeprefix(ABOUT)) if value.startswith(ABOUT) else None
    except ValueError:
        return None
