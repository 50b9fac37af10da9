"""Findings as sentences. In: `Summary` and its parts. Out: plain text, the same in HTML, Markdown and the
terminal.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from attnbench.analysis.clocks import below_usual
from attnbench.analysis.facets import DECODE, Facet, facet_title, group_title
from attnbench.analysis.metrics import LATENCY
from attnbench.analysis.overtaking import Overtaking
from attnbench.analysis.report import Report
from attnbench.analysis.rows import CaseRow
from attnbench.analysis.summary import Failure, LocalExponent, Ranking, Summary
from attnbench.render.model_words import share_words
from attnbench.render.numbers import (
    format_bytes,
    format_length,
    format_percent,
    format_ratio,
    format_seqlen,
    format_seqlens,
    format_value,
    plural,
)
from attnbench.render.vocabulary import STATUS_WORDS, spaced, with_care


@dataclass(frozen=True, slots=True)
class Answer:
    """What the records say about one facet: ``(subject, sentence)`` each."""

    title: str
    lines: tuple[tuple[str, str], ...]


def answers(report: Report) -> list[Answer]:
    """Return the first-screen answer of every group of facets that has one."""
    found = []
    for group in report.groups:
        lines = _group_lines(group, report.summary)
        if lines:
            found.append(Answer(group_title(group[0], report.untold), tuple(lines)))
    return found


def _group_lines(group: Sequence[Facet], summary: Summary) -> list[tuple[str, str]]:
    first = group[0]
    return [
        *(("Speed", text) for text in _ranked(group, summary.latency, speed_sentence, "takes")),
        *(("Memory", text) for text in _ranked(group, summary.memory, memory_sentence, "needs")),
        *(("State", text) for text in _ranked(group, summary.state, state_sentence, "keeps")),
        *(("Share", text) for text in share_words([one for one in summary.shares if one.facet == first])),
        *(("Crossing", text) for text in overtaking_words(group, summary.overtakings)),
        *(("Growth", text) for text in growth_words([one for one in summary.growth if one.facet == first])),
        *(("Failed", failure_sentence(failure)) for failure in summary.failures if failure.facet == first),
    ]


def _ranked(
    group: Sequence[Facet], rankings: Iterable[Ranking], sentence: Callable[[Ranking], str], verb: str
) -> list[str]:
    """Return a sentence for each mask under which implementations are ranked, and one for each implementation
    that stands alone under further masks.
    """
    texts: list[str] = []
    alone: dict[tuple[str, str], list[Ranking]] = {}
    for ranking in rankings:
        if ranking.facet not in group:
            continue
        if ranking.facet.mask == group[0].mask:
            texts.append(sentence(ranking))
        elif len(ranking.standings) > 1 or ranking.missing:
            texts.append(f"With {ranking.facet.mask}: {sentence(ranking)}")
        else:
            alone.setdefault((ranking.standings[0].label, _where(ranking)), []).append(ranking)
    for (label, where), members in alone.items():
        masks: dict[str, list[str]] = {}
        for one in members:
            value = format_value(one.standings[0].value, one.metric.unit)
            masks.setdefault(value, []).append(one.facet.mask)
        values = [f"{value} with {_and(found)}" for value, found in masks.items()]
        doubts = sorted({word for one in members for word in one.doubts})
        texts.append(f"{label} {verb} {', '.join(values)} {where}{with_care(doubts)}.")
    return texts


def constants_words(report: Report) -> str:
    """Return what holds for every case."""
    varying = {field.name for field in fields(Facet)} - set(report.constants)
    return facet_title(report.groups[0][0], varying) if report.groups else ""


def speed_sentence(ranking: Ranking) -> str:
    """Return who is fastest at the longest common length, and by how much."""
    best, *others = ranking.standings
    unit = ranking.metric.unit
    where, least = _where(ranking), format_value(best.value, unit)
    rest = [
        f"{format_ratio(other.ratio)} times faster than {other.label} ({format_value(other.value, unit)})"
        for other in others
        if other.label not in ranking.tied
    ]
    if not others:
        text = f"{best.label} takes {least} {where}"
    elif not ranking.tied:
        text = f"{best.label} is fastest {where} ({least})"
    elif rest:
        text = f"{_and(ranking.tied)} are fastest {where} ({least}, their 95 % intervals overlap)"
    else:
        text = f"{_and(ranking.tied)} can't be told apart {where} ({least}, their 95 % intervals overlap)"
    doubt = with_care(ranking.doubts)
    return text + (f": {_and(rest)}" if rest else "") + doubt + _without("latency", ranking.missing) + "."


def memory_sentence(ranking: Ranking) -> str:
    """Return who needs least memory at the longest common length, and how much more the one that needs most
    does.
    """
    return _least_and_most(ranking, "need", "memory")


def state_sentence(ranking: Ranking) -> str:
    """Return whose state is smallest at the longest common context, and how much larger the largest is."""
    return _least_and_most(ranking, "keep", "state")


def _least_and_most(ranking: Ranking, verb: str, what: str) -> str:
    best, worst = ranking.standings[0], ranking.standings[-1]
    unit = ranking.metric.unit
    where, amount = _where(ranking), format_value(best.value, unit)
    least = [standing.label for standing in ranking.standings if standing.value == best.value]
    if best is worst:
        text = f"{best.label} {verb}s {amount} {where}"
    else:
        text = f"{_and(least)} {verb}{'s' if len(least) == 1 else ''} least {what} {where} ({amount})"
    if worst.value > best.value:
        times = f"{format_ratio(worst.ratio)} times as much" if worst.ratio < float("inf") else "most"
        text += f"; {worst.label} {verb}s {times} ({format_value(worst.value, unit)})"
    return text + _without(ranking.metric.title.lower(), ranking.missing) + "."


def _where(ranking: Ranking) -> str:
    of_context = " of context" if ranking.facet.mode == DECODE else ""
    return f"at {format_seqlen(ranking.seqlen)} tokens{of_context}"


def growth_words(growth: Iterable[LocalExponent]) -> list[str]:
    """Return every implementation's local exponents: one text per quantity and pair of lengths."""
    groups: dict[tuple[str, int, int], list[LocalExponent]] = {}
    for one in growth:
        groups.setdefault((one.metric.title.lower(), one.seqlen_from, one.seqlen_to), []).append(one)
    return [
        f"{title}, {format_seqlen(start)} to {format_seqlen(end)}: "
        + ", ".join(
            f"{one.label} n^{one.exponent:.2f}" for one in sorted(members, key=lambda one: one.exponent)
        )
        + with_care(sorted({word for one in members for word in one.doubts}))
        for (title, start, end), members in groups.items()
    ]


def overtaking_words(group: Sequence[Facet], found: Iterable[Overtaking]) -> list[str]:
    """Return who is faster than whom from what length on: a text for each winner and mask."""
    winners: dict[tuple[str, str], list[Overtaking]] = {}
    for one in found:
        if one.facet in group and one.metric is LATENCY:
            winners.setdefault((one.facet.mask, one.winner), []).append(one)
    texts = []
    for (mask, winner), members in winners.items():
        under = "" if mask == group[0].mask else f"With {mask}: "
        said = [f"{one.loser} {from_words(one)}" for one in sorted(members, key=lambda one: one.seqlen)]
        doubts = sorted({word for one in members for word in one.doubts})
        texts.append(f"{under}{winner} is faster than {_and(said)}{with_care(doubts)}.")
    return texts


def from_words(one: Overtaking) -> str:
    """Return from what length on a curve is below another: ``from 490 tokens on (360 to 700)``."""
    start = format_length(one.seqlen)
    if one.kind == "between":
        return f"from somewhere between {format_length(one.low)} and {format_length(one.high)} tokens on"
    low = "less" if one.low is None else format_length(one.low)
    high = "more" if one.high is None else format_length(one.high)
    guess = ", beyond what was measured" if one.kind == "extrapolated" else ""
    return f"from about {start} tokens on ({low} to {high}{guess})"


GROWTH_NOTE = (
    "Growth is the slope on log axes between the last two lengths that were measured: "
    "a local exponent, not a fit."
)


def failure_sentence(failure: Failure) -> str:
    """Return where an implementation has no result, why in a word, and what it would have needed."""
    need = (
        f"; predicted to need {format_bytes(failure.expected_bytes)} at {format_seqlen(failure.seqlens[0])}"
        if failure.status == "oom" and failure.expected_bytes
        else ""
    )
    return f"{failure.label}: {failure.status} at {format_seqlens(failure.seqlens)}{need}."


def tally_words(summary: Summary) -> str:
    """Return how many cases ended how: ``90 cases: 81 ok, 8 unsupported, 1 oom``."""
    parts = ", ".join(f"{count} {status}" for status, count in by_rank(summary.tally))
    return f"{plural(sum(summary.tally.values()), 'case')}{': ' if parts else ''}{parts}"


def by_rank(tally: dict[str, int]) -> list[tuple[str, int]]:
    """Return statuses in a fixed order, unknown ones last."""
    order = list(STATUS_WORDS)
    return sorted(
        tally.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0])
    )


def accuracy_sentence(summary: Summary) -> str:
    """Return how results compare with the float64 truth."""
    accuracy = summary.accuracy
    if not accuracy.checked:
        return "No result was compared with the float64 truth."
    checked, outside = plural(accuracy.checked, "result"), accuracy.incorrect or "none"
    text = f"{checked} compared with the float64 truth, {outside} outside the budget"
    closest = accuracy.closest
    if closest is not None:
        where = f"{closest.implementation} at {format_seqlen(closest.seqlen)}, {closest.dtype}"
        text += f"; of those within, the closest used {format_percent(closest.budget_used)} of it ({where})"
    return text + "."


def doubt_sentence(summary: Summary) -> str:
    """Return which latencies to take with care; empty if none."""
    parts = [f"{count} {spaced(word)}" for word, count in sorted(summary.doubts.items())]
    if summary.one_launch:
        parts.append(f"{summary.one_launch} with an interval of one launch, which is too narrow")
    if not parts:
        return ""
    return f"Of {plural(summary.timed, 'latency', 'latencies')}, take with care: {', '.join(parts)}."


def clock_words(row: CaseRow) -> str:
    """Return how far the SM clock of a case was below the usual one of its run; empty if it was not."""
    part = below_usual(row)
    if not part:
        return ""
    usual_mhz = f"{row.usual_sm_clock_mhz:.0f} MHz"
    return f"SM clock {row.sm_clock_mhz:.0f} MHz, {format_percent(part)} below the run's usual {usual_mhz}"


def clock_sentence(summary: Summary) -> str:
    """Return how many latencies were measured at a low clock, and the worst of them; empty if none was."""
    if not summary.slow_clocks:
        return ""
    count, worst = len(summary.slow_clocks), summary.slow_clocks[0]
    where = f"{worst.implementation} at {format_seqlen(worst.seqlen)}"
    many = f"{plural(count, 'latency', 'latencies')} at a lower clock than is usual in the run"
    return f"{many}; the slowest: {where}, {clock_words(worst)}."


def other_function_sentence(summary: Summary) -> str:
    """Return who computes something other than softmax attention; empty if nobody."""
    if not summary.other_functions:
        return ""
    who = _and(summary.other_functions)
    verb = "computes" if len(summary.other_functions) == 1 else "compute"
    return (
        f"{who} {verb} another function than softmax attention: "
        "compared on cost, judged against its own definition."
    )


def _without(what: str, labels: Sequence[str]) -> str:
    return f". No {what} there: {', '.join(labels)}" if labels else ""


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
