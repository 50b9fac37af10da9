"""Tables of growth and of overtaking, for every form of report. In: `Report`. Out: rows of text."""

from attnbench.analysis.facets import Facet, group_title
from attnbench.analysis.metrics import LATENCY
from attnbench.analysis.power_law import PowerLaw
from attnbench.analysis.report import Report
from attnbench.analysis.scaling import STANDS_OUT, Scaling
from attnbench.render.numbers import ABSENT, format_length, format_seqlen
from attnbench.render.tables import PlainTable

TITLE = "Growth with the length"
MEANING = f"""\
The exponent b of overhead + a × n to the power b, fitted over all lengths, with a 95 % interval from how \
far the lengths lie from the curve. Local: exponents between neighbouring lengths. Theory: the same of what \
formulas count at these lengths; for a latency, of its executed FLOPs. A count must equal its theory; an \
exponent that differs by more than {STANDS_OUT} is of another order."""
OVERTAKING_TITLE = "Who overtakes whom"
OVERTAKING_MEANING = """\
From which length on one is below the other, with a 95 % interval. Without a fit it is known only to lie \
between two measured lengths; what lies beyond the measured lengths is a guess, and marked as one."""


def growth_tables(report: Report, *, short: bool = False) -> list[PlainTable]:
    """Return one table for each group of facets: a row for each quantity and curve.

    The ``short`` form has latencies, and of the rest what differs from theory.
    """
    chosen = [
        one
        for one in report.summary.scalings
        if not short or one.metric is LATENCY or one.verdict == "differs"
    ]
    return [
        PlainTable(
            title=group_title(group[0], report.untold),
            columns=(
                ("Quantity", False),
                ("Implementation", False),
                ("Lengths", True),
                ("Exponent", True),
                ("95 % interval", True),
                ("Theory", True),
                ("Local", True),
                ("Theory, local", True),
                ("Verdict", False),
            ),
            rows=[_growth(one) for one in members],
        ).trimmed()
        for group in report.groups
        if (members := [one for one in chosen if one.facet == group[0]])
    ]


def overtaking_tables(report: Report) -> list[PlainTable]:
    """Return the one table of every overtaking; none without any."""
    found = report.summary.overtakings
    if not found:
        return []
    rows = [
        [
            _where(one.facet, report),
            one.metric.title,
            one.winner,
            one.loser,
            format_length(one.seqlen),
            f"{_end(one.low, 'less')} to {_end(one.high, 'more')}",
            one.kind,
            ", ".join(word.replace("_", " ") for word in one.doubts) or ABSENT,
        ]
        for one in found
    ]
    columns = (
        ("Where", False),
        ("Quantity", False),
        ("Below", False),
        ("Is above", False),
        ("From", True),
        ("95 % interval", True),
        ("How known", False),
        ("Take with care", False),
    )
    return [PlainTable("", columns, rows).trimmed()]


def stand_outs(report: Report) -> list[str]:
    """Return a sentence for each curve that grows in another order than theory says."""
    return [
        f"{one.label}: {one.metric.title.lower()} grows as {_exponent_words(one)} where theory says "
        f"{_theory_words(one)} ({group_title(one.facet, report.untold)})."
        for one in report.summary.scalings
        if one.stands_out
    ]


def _growth(one: Scaling) -> list[str]:
    fit = one.fit
    steps = [f"{secant.exponent:.2f}" for secant in one.secants]
    theory = [ABSENT if secant.theory is None else f"{secant.theory:.2f}" for secant in one.secants]
    lengths = dict.fromkeys((one.seqlens[0], one.seqlens[-1]))
    return [
        one.metric.title,
        one.label,
        " to ".join(map(format_seqlen, lengths)),
        _exponent(fit),
        _interval(fit),
        ABSENT if one.theory is None else f"{one.theory:.2f}",
        ", ".join(steps),
        ", ".join(theory) if any(text != ABSENT for text in theory) else ABSENT,
        _verdict(one),
    ]


def _exponent(fit: PowerLaw | None) -> str:
    return f"{fit.exponent:.2f}" if fit is not None and fit.determined else ABSENT


def _interval(fit: PowerLaw | None) -> str:
    if fit is None:
        return ABSENT
    if not fit.determined:
        return "undetermined"
    return f"{fit.exponent_low:.2f} to {fit.exponent_high:.2f}"


def _verdict(one: Scaling) -> str:
    if one.verdict != "differs":
        return one.verdict
    return f"{'another order' if one.stands_out else 'differs'} ({one.difference:+.2f})"


def _exponent_words(one: Scaling) -> str:
    if one.fit is not None and one.fit.determined:
        return f"n^{one.fit.exponent:.2f} ({_interval(one.fit)})"
    worst = max(one.secants, key=lambda secant: abs(secant.difference or 0.0))
    return f"n^{worst.exponent:.2f}"


def _theory_words(one: Scaling) -> str:
    if one.theory is not None:
        return f"n^{one.theory:.2f}"
    worst = max(one.secants, key=lambda secant: abs(secant.difference or 0.0))
    return f"n^{worst.theory:.2f}"


def _end(seqlen: float | None, beyond: str) -> str:
    return beyond if seqlen is None else format_length(seqlen)


def _where(facet: Facet, report: Report) -> str:
    return group_title(facet, report.untold)
