"""The table of how long a sequence may be, for every form of report. In: `Report`. Out: rows of text."""

from attnbench.analysis.facets import group_title
from attnbench.analysis.report import Report
from attnbench.render.numbers import ABSENT, format_bytes, format_length, format_seqlen
from attnbench.render.tables import PlainTable

TITLE = "How long a sequence fits"
MEANING = """\
The longest length whose predicted peak fits a memory: from the sums of tensors that the records hold, \
at their batch and heads. Beside it what ran, and what did not for want of memory."""


def frontier_tables(report: Report) -> list[PlainTable]:
    """Return one table for each group of facets, longest first in the largest memory."""
    tables = []
    for group in report.groups:
        members = [one for one in report.frontiers if one.facet == group[0]]
        members.sort(key=lambda one: -(one.fits[-1][1] or 0))
        memories = sorted({memory for one in members for memory, _ in one.fits})
        rows = []
        for one in members:
            fits = dict(one.fits)
            rows.append(
                [
                    one.label,
                    *(_length(fits.get(memory)) for memory in memories),
                    ABSENT if one.longest_met is None else format_seqlen(one.longest_met),
                    ABSENT if one.shortest_oom is None else format_seqlen(one.shortest_oom),
                ]
            )
        if rows:
            columns = (
                ("Implementation", False),
                *((format_bytes(memory), True) for memory in memories),
                ("Ran up to", True),
                ("Out of memory from", True),
            )
            tables.append(PlainTable(group_title(group[0], report.untold), columns, rows).trimmed())
    return tables


def _length(longest: int | None) -> str:
    if longest is None:
        return ABSENT
    return f"{longest / 2**20:.2g}M" if longest >= 2**20 else format_length(longest + 0.5)
