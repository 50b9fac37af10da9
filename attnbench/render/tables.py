"""The table of every case. In: `Report`. Out: columns and rows of text, for HTML and Markdown, and CSV with
exact numbers.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from attnbench.analysis.clocks import VALID
from attnbench.analysis.facets import level_words
from attnbench.analysis.report import Report
from attnbench.analysis.rows import CaseRow
from attnbench.render.numbers import (
    ABSENT,
    format_loss,
    format_percent,
    format_perplexity,
    format_seqlen,
    format_value,
    with_units,
)
from attnbench.render.vocabulary import spaced
from attnbench.render.words import clock_words

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
    """Text, row by row; the first column is the status, the last the notes.

    The row of a failed case ends after ``circumstances`` columns with its reason: it has no quantities.
    """

    columns: tuple[Column, ...]
    circumstances: int
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class PlainTable:
    """Headings with whether they stand over numbers, and rows of text."""

    title: str
    columns: tuple[tuple[str, bool], ...]
    rows: list[list[str]]
    note: str = ""

    def trimmed(self) -> "PlainTable":
        """Return the table without columns in which nothing has a value."""
        kept = [place for place in range(len(self.columns)) if any(row[place] != ABSENT for row in self.rows)]
        return replace(
            self,
            columns=tuple(self.columns[place] for place in kept),
            rows=[[row[place] for place in kept] for row in self.rows],
        )


def case_table(report: Report) -> Table:
    """Return one row for every case of the report. What is the same for all of them has no column."""
    circumstances = (
        Column("Status", lambda row: row.status),
        *((Column("Run", lambda row: row.run),) if len(report.runs) > 1 else ()),
        Column("Implementation", _who),
        *(column for name, column in CIRCUMSTANCES if name not in report.constants),
        Column("Length", lambda row: format_seqlen(row.seqlen), numeric=True),
    )
    fine = [row for row in report.rows if row.is_ok]
    quantities = [
        column for column in QUANTITIES if any(column.text(row) not in ("", ABSENT) for row in fine)
    ]
    columns = (*circumstances, *quantities, Column("Notes", notes))
    return Table(
        columns,
        len(circumstances),
        [
            [column.text(row) for column in columns]
            if row.is_ok
            else [*(column.text(row) for column in circumstances), with_units(row.reason)]
            for row in report.rows
        ],
    )


def notes(row: CaseRow) -> str:
    """Return what speaks against the latency of a case (its clock too) and its interval, how far its function
    is from softmax, who computes its cross-attention if another does, and what was cut to check it.
    """
    doubts = ", ".join(spaced(word) for word in row.latency_verdict if word != VALID)
    far = (
        "" if row.softmax_distance is None else f"{format_value(row.softmax_distance, 'number')} from softmax"
    )
    other = row.cross_implementation not in ("", row.implementation)
    cross = f"cross-attention by {row.cross_implementation}" if other else ""
    narrow = "interval of one launch" if row.one_launch else ""
    return "; ".join(part for part in (doubts, clock_words(row), narrow, far, cross, row.reduced) if part)


def csv_text(report: Report) -> str:
    """Return every case with exact numbers; the header holds the names of `CaseRow`, an empty cell is an
    absence.
    """
    names = [field.name for field in fields(CaseRow) if field.name not in ("absent", "run_label")]
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
    below, above = (
        f"{100 * abs(bound / row.latency_ms - 1):.0f}" for bound in (row.latency_low_ms, row.latency_high_ms)
    )
    return f"±{above} %" if below == above else f"−{below} +{above} %"


def _plain(value: object) -> str | int | float:
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = " ".join(map(str, value))
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_STARTS) else value
    return value if isinstance(value, int | float) else ""


CIRCUMSTANCES = (
    ("level", Column("Level", level_words)),
    ("architecture", Column("Architecture", lambda row: row.architecture)),
    ("mode", Column("Mode", lambda row: row.mode)),
    ("mask", Column("Mask", lambda row: row.mask)),
    ("dtype", Column("Dtype", lambda row: row.dtype)),
    ("device", Column("Device", lambda row: row.device)),
    ("shape", Column("Batch, heads, width", _shape)),
    ("extras", Column("Besides", lambda row: row.extras)),
)
QUANTITIES = (
    Column("Latency", lambda row: format_value(row.latency_ms, "ms"), numeric=True),
    Column("95 %", _interval, numeric=True),
    Column("Peak", lambda row: format_value(row.peak_bytes, "bytes"), numeric=True),
    Column("State", lambda row: format_value(row.state_bytes, "bytes"), numeric=True),
    Column("Share of time", lambda row: format_percent(row.latency_share), numeric=True),
    Column("of memory", lambda row: format_percent(row.memory_share), numeric=True),
    Column("of FLOPs", lambda row: format_percent(row.flops_share), numeric=True),
    Column("Optimiser step", lambda row: format_value(row.optimizer_ms, "ms"), numeric=True),
    Column("its state", lambda row: format_value(row.optimizer_state_bytes, "bytes"), numeric=True),
    Column("Compulsory", lambda row: format_value(row.compulsory_bytes, "bytes"), numeric=True),
    Column("Operand", lambda row: format_value(row.operand_bytes, "bytes"), numeric=True),
    Column("Requested", lambda row: format_value(row.requested_bytes, "bytes"), numeric=True),
    Column("DRAM", lambda row: format_value(row.dram_bytes, "bytes"), numeric=True),
    Column("Error", lambda row: format_value(row.max_abs_error, "number"), numeric=True),
    Column("Budget", lambda row: format_percent(row.budget_used), numeric=True),
    Column("Loss", lambda row: format_loss(row.loss), numeric=True),
    Column("Perplexity", lambda row: format_perplexity(row.perplexity), numeric=True),
)
