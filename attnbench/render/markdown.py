"""The short form of a report, for a pull request. In: `Report`. Out: Markdown in which no text of a record
can break the layout.
"""

import re
from collections.abc import Sequence

from attnbench.analysis.facets import MODE_WORDS
from attnbench.analysis.report import Report
from attnbench.render.exchange_table import MEANING, TITLE, exchange_tables
from attnbench.render.frontier_table import MEANING as FRONTIER_MEANING
from attnbench.render.frontier_table import TITLE as FRONTIER_TITLE
from attnbench.render.frontier_table import frontier_tables
from attnbench.render.growth_table import MEANING as GROWTH_MEANING
from attnbench.render.growth_table import (
    OVERTAKING_MEANING,
    OVERTAKING_TITLE,
    growth_tables,
    overtaking_tables,
    stand_outs,
)
from attnbench.render.growth_table import TITLE as GROWTH_TITLE
from attnbench.render.numbers import plural, with_units
from attnbench.render.overview import failure_groups, left_out, overview, problems, run_lines
from attnbench.render.published_table import MEANING as PUBLISHED_MEANING
from attnbench.render.published_table import TITLE as PUBLISHED
from attnbench.render.published_table import published_tables
from attnbench.render.roofline_table import MEANING as ROOFLINE_MEANING
from attnbench.render.roofline_table import TITLE as ROOFLINE
from attnbench.render.roofline_table import roofline_tables
from attnbench.render.share_table import share_tables
from attnbench.render.tables import PlainTable, case_table
from attnbench.render.words import GROWTH_NOTE, answers, constants_words, tally_words

SPECIAL = re.compile(r"([\\`*\[\]<>#|~$&]|(?<!\w)_|_(?!\w))")
MOST_ROWS = 200
LONGEST_TEXT = 160


def markdown_report(report: Report, plots: Sequence[tuple[str, str]] = ()) -> str:
    """Return the document; ``plots`` are ``(title, relative path)`` of pictures beside it."""
    parts = [
        f"# {escape_markdown(report.title)}: attention benchmark",
        "",
        *_head(report),
        "",
        "## In short",
        "",
    ]
    parts += [
        f"- {escape_markdown(text)}" for text in (*problems(report), *stand_outs(report), *overview(report))
    ]
    for table in share_tables(report):
        parts += ["", f"**{escape_markdown(table.title)}**", "", *_plain_table(table)]
    for answer in answers(report):
        parts += ["", f"**{escape_markdown(answer.title)}**", ""]
        parts += [f"- {subject}: {escape_markdown(text)}" for subject, text in answer.lines]
    if report.summary.growth:
        parts += ["", GROWTH_NOTE]
    for title, meaning, tables in (
        (OVERTAKING_TITLE, OVERTAKING_MEANING, overtaking_tables(report)),
        (FRONTIER_TITLE, FRONTIER_MEANING, frontier_tables(report)),
        (GROWTH_TITLE, GROWTH_MEANING, growth_tables(report, short=True)),
    ):
        if tables:
            parts += ["", f"## {title}", "", meaning]
        for table in tables:
            parts += [
                "",
                *([f"**{escape_markdown(table.title)}**", ""] if table.title else []),
                *_plain_table(table),
            ]
    for table in exchange_tables(report):
        parts += ["", f"## {TITLE}: {escape_markdown(table.title)}", "", *_plain_table(table), "", MEANING]
    for title, meaning, tables in (
        (ROOFLINE, ROOFLINE_MEANING, roofline_tables(report)),
        (PUBLISHED, PUBLISHED_MEANING, published_tables(report)),
    ):
        parts += ["", f"## {title}", "", meaning] if tables else []
        for table in tables:
            parts += ["", f"**{escape_markdown(table.title)}**", "", *_plain_table(table)]
    for title, path in plots:
        parts += ["", f"![{escape_markdown(title)}]({path})"]
    if report.rows:
        parts += ["", "## All cases", "", *_table(report)]
    parts += ["", "## What is missing, and why", "", *_missing(report)]
    return "\n".join(parts) + "\n"


def escape_markdown(text: str) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("\\<", "&lt;").replace("\\&", "&amp;")


def _head(report: Report) -> list[str]:
    lines = [
        f"- {name}: {escape_markdown(value)}"
        for run in report.runs
        for name, value in run_lines(run)
        if value
    ]
    lines += [f"- Again: `{run.command.replace('`', '')}`" for run in report.runs if run.command]
    return [*lines, f"- {tally_words(report.summary)}"]


def _plain_table(table: PlainTable) -> list[str]:
    return [
        "| " + " | ".join(escape_markdown(title) for title, _ in table.columns) + " |",
        "|" + "|".join("---:" if numeric else "---" for _, numeric in table.columns) + "|",
        *("| " + " | ".join(map(_cell, row)) + " |" for row in table.rows),
        *(["", escape_markdown(table.note)] if table.note else []),
    ]


def _table(report: Report) -> list[str]:
    table = case_table(report)
    said = constants_words(report)
    lines = [f"All of them: {escape_markdown(said)}.", ""] if said else []
    lines.append("| " + " | ".join(column.title for column in table.columns) + " |")
    lines.append("|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|")
    for row in table.rows[:MOST_ROWS]:
        empty = [""] * (len(table.columns) - len(row))
        lines.append("| " + " | ".join([*(_cell(cell) for cell in row[:-1]), *empty, _cell(row[-1])]) + " |")
    hidden = len(table.rows) - MOST_ROWS
    return (
        [*lines, "", f"{plural(hidden, 'more case')} in cases.csv and report.html."] if hidden > 0 else lines
    )


def _cell(text: str) -> str:
    return escape_markdown(text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " …")


def _missing(report: Report) -> list[str]:
    lines = [
        f"- {group.status}, {plural(group.count, 'case')} of {_cell(group.who)}: {_cell(group.reason)}"
        for group in failure_groups(report)
    ]
    lines += [
        f"- {escape_markdown(absence.field)}, {plural(absence.count, 'case')} of "
        f"{escape_markdown(', '.join(absence.implementations))}: {_cell(with_units(absence.reason))}"
        for absence in report.summary.absences
    ]
    lines += [f"- {line}" for line in left_out(report)]
    modes = "; ".join(f"{mode}: {words}" for mode, words in MODE_WORDS.items())
    return [*(lines or ["- Nothing."]), "", f"Modes: {modes}. Bytes are binary, k is 1024."]
