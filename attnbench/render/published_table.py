"""Tables of what was measured beside what others published, for every form of report. In: `Report`. Out: rows
of text, one for each measured curve and published series.
"""

from attnbench.analysis.comparison import ComparedPoint, Comparison
from attnbench.analysis.facets import MODE_WORDS
from attnbench.analysis.metrics import Unit
from attnbench.analysis.published import PublishedTable
from attnbench.analysis.report import Report
from attnbench.render.numbers import format_ratio, format_seqlen, format_seqlens, format_value
from attnbench.render.tables import PlainTable

TITLE = "Beside published numbers"
MEANING = """\
The same device, shape, mask and dtype as others published. The ratio is measured over published: below 1, \
it took less here. Published rates became times by the FLOPs that their source counts."""
COLUMNS = (
    ("Measured", False),
    ("Published", False),
    ("Lengths", True),
    ("At", True),
    ("measured", True),
    ("published", True),
    ("Ratio there", True),
    ("over all lengths", True),
)
READ = {
    "figure": "read off a figure",
    "secondary": "as others copied it",
    "thread": "from a discussion",
    "commit": "from files in a repository",
}


def published_tables(report: Report) -> list[PlainTable]:
    """Return a table for each published one that has a match."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for one in report.published:
        groups.setdefault((one.table.source, _circumstances(one.table), one.table.quantity), []).append(one)
    return [
        PlainTable(f"{source}: {said}", COLUMNS, [_row(one) for one in members], _note(members[0].table))
        for (source, said, _), members in groups.items()
    ]


def _circumstances(table: PublishedTable) -> str:
    mode = MODE_WORDS.get(table.mode or "", "")
    return f"{table.device}, {mode}, {table.mask}, {table.dtype}, {table.num_heads} × {table.head_dim}"


def _row(one: Comparison) -> list[str]:
    last = one.points[-1]
    unit: Unit = "bytes" if one.table.quantity == "traffic" else "ms"
    return [
        one.label,
        one.name,
        format_seqlens(tuple(point.seqlen for point in one.points)),
        format_seqlen(last.seqlen),
        format_value(last.measured, unit),
        format_value(last.published, unit),
        format_ratio(last.ratio),
        _range(one.points),
    ]


def _range(points: tuple[ComparedPoint, ...]) -> str:
    ends = [format_ratio(end([point.ratio for point in points])) for end in (min, max)]
    return " to ".join(dict.fromkeys(ends))


def _note(table: PublishedTable) -> str:
    said = READ.get(table.read, "")
    return " ".join(filter(None, (f"{said[:1].upper()}{said[1:]}." if said else "", table.caveat)))
