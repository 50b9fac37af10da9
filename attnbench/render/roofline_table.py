"""How close each implementation comes to the limits of its device, for every form of report. In: `Report`.
Out: rows of text, one for the longest length of each curve.
"""

from attnbench.analysis.facets import group_title
from attnbench.analysis.report import Report
from attnbench.analysis.roofline import EXP2, MATMUL, MEMORY, Roof, Roofline, RooflinePoint
from attnbench.render.numbers import (
    ABSENT,
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_seqlen,
    format_value,
    plural,
)
from attnbench.render.tables import PlainTable

TITLE = "Roofline"
MEANING = """\
What the device was seen to do at most, measured at the start of the run, beside what each implementation \
made of it at its longest length. Matmul, memory and exp2 are the times that useful FLOPs, bytes and \
exponentials take at those rates; the longest of them that the call did not beat is its limit, and \
reached says what part of the latency that is. Intensity is useful FLOPs a byte, of device memory where \
that was counted, else of operands; of operands that a cache holds as a whole, only compulsory bytes \
count as memory's time."""
MOST_ROWS = 60
COLUMNS = (
    ("Cases", False),
    ("Implementation", False),
    ("Length", True),
    ("Limit", False),
    ("Reached", True),
    ("Latency", True),
    ("Matmul", True),
    ("Memory", True),
    ("Exp2", True),
    ("FLOP/s", True),
    ("Intensity", True),
    ("Bytes", False),
)


def roofline_tables(report: Report) -> list[PlainTable]:
    """Return a table for each device and type."""
    return [
        PlainTable(
            roof_title(one.roof, report),
            COLUMNS,
            [_row(point, report) for point in one.longest[:MOST_ROWS]],
            _note(one),
        ).trimmed()
        for one in report.rooflines
    ]


def roof_title(roof: Roof, report: Report) -> str:
    """Return what tells a roof from the others of a report."""
    return ", ".join(([roof.run] if len(report.runs) > 1 else []) + [roof.device, roof.dtype])


def roof_words(roof: Roof) -> str:
    """Return the ceilings in words."""
    parts = [
        f"products in {roof.products} {format_count(int(roof.flops_per_s))}FLOP/s",
        f"memory {format_bytes(roof.bytes_per_s)}/s",
    ]
    if roof.exp2_per_s is not None:
        parts.append(f"exp2 {format_count(int(roof.exp2_per_s))}/s")
    return ", ".join(parts)


def _row(point: RooflinePoint, report: Report) -> list[str]:
    limits = [format_value(point.limits_ms.get(name), "ms") for name in (MATMUL, MEMORY, EXP2)]
    return [
        group_title(point.facet, report.untold),
        point.label,
        format_seqlen(point.row.seqlen),
        point.limit or "beaten, all",
        format_percent(point.fraction),
        format_value(point.row.latency_ms, "ms"),
        *limits,
        format_count(int(point.flops_per_s)),
        ABSENT if point.intensity is None else format_number(point.intensity),
        ABSENT if point.intensity is None else "DRAM" if point.counted else "operand",
    ]


def _note(one: Roofline) -> str:
    doubts = f" The ceilings are {', '.join(one.roof.doubts)}." if one.roof.doubts else ""
    threads = one.roof.threads
    by = "" if threads is None else f", {plural(threads, 'thread')}"
    more = len(one.longest) - MOST_ROWS
    unseen = f" {plural(more, 'more curve')} are left out here." if more > 0 else ""
    return f"At most {roof_words(one.roof)}{by}.{doubts}{unseen}"
