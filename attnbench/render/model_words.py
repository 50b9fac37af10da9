"""Findings about attention inside a model as sentences: its share, and what exchanging it costs. In: `Report`
and findings. Out: plain text.
"""

from collections.abc import Sequence

from attnbench.analysis.facets import group_title
from attnbench.analysis.metrics import SHARES, Metric
from attnbench.analysis.quality import Exchange
from attnbench.analysis.report import Report
from attnbench.analysis.shares import ShareChange, steepest
from attnbench.render.numbers import format_percent, format_perplexity, format_seqlen
from attnbench.render.vocabulary import with_care


def share_words(changes: Sequence[ShareChange]) -> list[str]:
    """Return what part is attention's at the shortest and the longest length, one text per quantity and pair
    of lengths; largest at the longest first.
    """
    groups: dict[tuple[Metric, int, int], list[ShareChange]] = {}
    for one in sorted(changes, key=lambda one: (SHARES.index(one.metric), -one.last)):
        groups.setdefault((one.metric, one.seqlen_from, one.seqlen_to), []).append(one)
    return [
        f"of the {of_what(metric)}{_between(start, end)}: "
        + ", ".join(
            f"{one.label} {change_words(one.first, one.last, single=start == end)}" for one in members
        )
        + with_care(sorted({word for one in members for word in one.doubts}))
        for (metric, start, end), members in groups.items()
    ]


def change_words(first: float, last: float, *, single: bool = False) -> str:
    """Return ``12 to 71 %``; of a single length ``71 %``."""
    start = "" if single else f"{format_percent(first).removesuffix(' %')} to "
    return start + format_percent(last)


def share_finding(report: Report) -> str:
    """Return where attention's share of the time grows most; empty if no share is known at two lengths."""
    change = steepest(report.summary.shares)
    if change is None:
        return ""
    return (
        f"Attention with its projections is {format_percent(change.first)} of the {of_what(change.metric)} "
        f"at {format_seqlen(change.seqlen_from)} tokens and {format_percent(change.last)} "
        f"at {format_seqlen(change.seqlen_to)} for {change.label} "
        f"({group_title(change.facet, report.untold)}){with_care(change.doubts)}."
    )


def of_what(share: Metric) -> str:
    """Return what a share is a part of: ``time``."""
    return share.title.removeprefix("Share of ")


def _between(start: int, end: int) -> str:
    return f", {format_seqlen(start)} to {format_seqlen(end)}" if start < end else f" at {format_seqlen(end)}"


def quality_finding(report: Report) -> list[str]:
    """Return, for every trained model whose attention was exchanged, which exchange costs least and most."""
    return [text for exchange in report.summary.exchanges if (text := _exchange_sentence(exchange, report))]


def _exchange_sentence(exchange: Exchange, report: Report) -> str:
    seqlen = max(line.row.seqlen for line in exchange.lines)
    lines = exchange.at(seqlen)
    exact = next((line for line in lines if line.is_exact), None)
    others = [line for line in lines if not line.is_exact]
    if exact is None or not others:
        return ""
    text = (
        f"{group_title(exchange.facet, report.untold)}: perplexity {format_perplexity(exact.row.perplexity)} "
        f"with exact attention at {format_seqlen(seqlen)} tokens, "
        f"{format_perplexity(others[0].row.perplexity)} with {others[0].label}"
    )
    if len(others) > 1:
        worst = others[-1]
        text += f", {format_perplexity(worst.row.perplexity)} with {worst.label}"
    return text + "."
