"""The table of every case. In: `Report`. Out: columns and rows of text, for HTML and Markdown, and CSV with exact numbers."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from attnbench.analysis.report import Report
from attnbench.analysis.rows import CaseRow
from attnbench.analysis.series import MODE_WORDS
from attnbench.render.numbers import format_percent, format_seqlen, format_value

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would run text that starts with one of these."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, how a row is shown in it, and whether it holds numbers."""

    title: str
    text: Callable[[CaseRow], str]
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Text, row by row; the first column is the status, the last the reason."""

    columns: tuple[Column, ...]
    rows: list[list[str]]


def case_table(report: Report) -> Table:
    """Return one row for every case of the report. What is the same for all of them has no column."""
    said_once = set(report.constants)
    several_runs = len(report.runs) > 1
    columns = (
        Column("Status", lambda row: row.status),
        *((Column("Run", lambda row: row.run),) if several_runs else ()),
        Column("Implementation", _who),
        *(column for name, column in CIRCUMSTANCES if name not in said_once),
        Column("Length", lambda row: format_seqlen(row.seqlen), numeric=True),
        *(column for column in QUANTITIES if any(column.text(row) not in ("", "–") for row in report.rows)),
        Column("Why, or with what doubt", why),
    )
    return Table(columns, [[column.text(row) for column in columns] for row in report.rows])


def why(row: CaseRow) -> str:
    """Return the reason of a failure, or what speaks against an ok case's latency and what was cut."""
    if not row.is_ok:
        return row.reason
    doubts = [word.replace("_", " ") for word in row.latency_verdict if word != "valid"]
    return "; ".join(part for part in (", ".join(doubts), row.reduced) if part)


def csv_text(report: Report) -> str:
    """Return every case with exact numbers; the header holds the names of `CaseRow`, an empty cell is an absence."""
    names = [field.name for field in fields(CaseRow) if field.name != "absent"]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*names, "unavailable"])
    for row in report.rows:
        unavailable = "; ".join(f"{name}: {reason}" for name, reason in row.absent.items())
        writer.writerow([*(_plain(getattr(row, name)) for name in names), _plain(unavailable)])
    return buffer.getvalue()


def _who(row: CaseRow) -> str:
    return f"{row.implementation} ({row.options})" if row.options else row.implementation


def _shape(row: CaseRow) -> str:
    heads = str(row.num_heads) + (f"/{row.num_kv_heads}" if row.num_kv_heads != row.num_heads else "")
    width = str(row.head_dim) + (f"/{row.head_dim_v}" if row.head_dim_v != row.head_dim else "")
    return f"{row.batch}, {heads}, {width}"


def _interval(row: CaseRow) -> str:
    if row.latency_ms is None or row.latency_low_ms is None or row.latency_high_ms is None:
        return ""
    below, above = row.latency_low_ms / row.latency_ms - 1, row.latency_high_ms / row.latency_ms - 1
    return f"{100 * below:+.0f} {100 * above:+.0f} %".replace("-", "−")


def _plain(value: object) -> str | int | float:
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = " ".join(map(str, value))
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_STARTS) else value
    return value if isinstance(value, int | float) else ""


CIRCUMSTANCES = (
    ("level", Column("Level", lambda row: f"{row.level} {row.preset}".strip())),
    ("mode", Column("Mode", lambda row: MODE_WORDS.get(row.mode, row.mode))),
    ("mask", Column("Mask", lambda row: row.mask)),
    ("dtype", Column("Dtype", lambda row: row.dtype)),
    ("device", Column("Device", lambda row: row.device)),
    ("shape", Column("Batch, heads, width", _shape)),
    ("extras", Column("Besides", lambda row: row.extras)),
)
QUANTITIES = (
    Column("Latency", lambda row: format_value(row.latency_ms, "ms"), numeric=True),
    Column("95 %", _interval, numeric=True),
    Column("Peak memory", lambda row: format_value(row.peak_bytes, "bytes"), numeric=True),
    Column("Above inputs", lambda row: format_value(row.peak_increment_bytes, "bytes"), numeric=True),
    Column("Predicted peak", lambda row: format_value(row.predicted_peak_bytes, "bytes"), numeric=True),
    Column("Compulsory", lambda row: format_value(row.compulsory_bytes, "bytes"), numeric=True),
    Column("Operand", lambda row: format_value(row.operand_bytes, "bytes"), numeric=True),
    Column("Requested", lambda row: format_value(row.requested_bytes, "bytes"), numeric=True),
    Column("DRAM", lambda row: format_value(row.dram_bytes, "bytes"), numeric=True),
    Column("Error", lambda row: format_value(row.max_abs_error, "number"), numeric=True),
    Column("Budget used", lambda row: format_percent(row.budget_used), numeric=True),
    Column("To softmax", lambda row: format_value(row.softmax_distance, "number"), numeric=True),
    Column("Perplexity", lambda row: format_value(row.perplexity, "number"), numeric=True),
)
