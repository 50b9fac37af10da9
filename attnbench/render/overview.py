"""What HTML and Markdown both say around the plots and tables. In: `Report`. Out: lines of plain text."""

from dataclasses import dataclass

from attnbench.analysis.provenance import RunFacts
from attnbench.analysis.report import Report
from attnbench.render.model_words import quality_finding, share_finding
from attnbench.render.numbers import plural, with_units
from attnbench.render.words import (
    accuracy_sentence,
    clock_sentence,
    doubt_sentence,
    other_function_sentence,
)

SAMPLES_FILE = "samples.jsonl"


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one kind for one reason."""

    status: str
    reason: str
    who: str
    count: int


def run_lines(run: RunFacts) -> list[tuple[str, str]]:
    """Return what the head of a report says of a run; the caller drops lines without a value."""
    return [
        ("Run", run.label),
        ("On", run.hardware),
        ("With", run.software),
        ("Started", run.started.replace("T", " ").replace("Z", " UTC")),
        ("Revision", run.revision),
    ]


def overview(report: Report) -> list[str]:
    """Return the sentences that hold for the report as a whole."""
    if not report.rows:
        planned = any(run.missing for run in report.runs)
        return [] if planned else ["There is no case in this run: nothing to show."]
    summary = report.summary
    return [
        text
        for text in (
            share_finding(report),
            *quality_finding(report),
            accuracy_sentence(summary),
            doubt_sentence(summary),
            clock_sentence(summary),
            other_function_sentence(summary),
        )
        if text
    ]


def problems(report: Report) -> list[str]:
    """Return what could not be read, and what was planned but has no record."""
    unread = [f"{run.label}: {problem}" for run in report.runs for problem in run.problems]
    missing = [
        f"{run.label}: {plural(len(run.missing), 'planned case')} without a record"
        for run in report.runs
        if run.missing
    ]
    return unread + missing


def failure_groups(report: Report) -> list[FailureGroup]:
    """Return failures by status and reason, most frequent first, and the planned cases of each run that did
    not run.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for row in report.rows:
        if not row.is_ok:
            groups.setdefault((row.status, with_units(row.reason)), []).append(row.implementation)
    found = [
        FailureGroup(status, reason, ", ".join(dict.fromkeys(who)), len(who))
        for (status, reason), who in groups.items()
    ]
    found += [
        FailureGroup("not run", "planned, but without a record", ", ".join(run.missing), len(run.missing))
        for run in report.runs
        if run.missing
    ]
    return sorted(found, key=lambda group: -group.count)


def left_out(report: Report) -> list[str]:
    """Return what the records hold but a report does not, and where it is."""
    if not report.samples:
        return []
    return [
        f"{report.samples:,} raw samples of latencies are left out here: "
        f"{SAMPLES_FILE} beside this file holds them."
    ]
