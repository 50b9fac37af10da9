"""Claims as text of at most 80 columns. In: judged claims. Out: lines."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite, isnan
from textwrap import wrap

from attnbench.analysis.claims import ClaimPart, ClaimRow, Estimate, Expectation, Verdict
from attnbench.render.numbers import format_count, plural, shorten_exponent

WIDTH = 80
TEXT, EXPECTED = 36, 19
"""Columns of what a quantity is, and of what is expected of it."""
LARGE = 1e6
MARKS = {True: "✓", False: "✗", None: "·"}
PLURALS: dict[Verdict, str] = {"holds": "hold", "fails": "fail", "needs a GPU": "need a GPU"}


def claim_lines(rows: Sequence[ClaimRow]) -> Iterator[str]:
    """Yield a block a claim, and a last line that counts the verdicts."""
    for row in rows:
        yield f"{row.claim.id}: {row.verdict}"
        yield from _wrapped(row.claim.statement)
        yield from _wrapped(f"[{row.claim.source}]")
        yield f"{'':4}{'':{TEXT}}{'expected':{EXPECTED}}measured"
        yield from map(_part_line, row.parts)
        yield ""
    counts = Counter(row.verdict for row in rows)
    said = [f"{count} {verdict if count == 1 else PLURALS[verdict]}" for verdict, count in counts.items()]
    yield f"{plural(len(rows), 'claim')}: {', '.join(said)}"


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)


def _part_line(part: ClaimPart) -> str:
    one = part.expectation
    return f"  {MARKS[part.holds]} {one.text:{TEXT}}{expected_words(one):{EXPECTED}}{measured_words(part)}"


def expected_words(expectation: Expectation) -> str:
    """Return ``2 ± 0.05``, ``40.3 GB ± 5 %``, ``≥ 1``, ``10 to 100 GB``."""
    one = expectation
    if one.equals is not None:
        within = (
            f"{100 * one.tolerance / one.equals:.1g} %" if one.unit and one.equals else f"{one.tolerance:g}"
        )
        return _number(one.equals, one.unit) + (f" ± {within}" if one.tolerance else "")
    if one.at_least is not None and one.at_most is not None:
        return f"{_number(one.at_least, one.unit)} to {_number(one.at_most, one.unit)}"
    sign, limit = ("≥", one.at_least) if one.at_most is None else ("≤", one.at_most)
    return f"{sign} {_number(limit or 0.0, one.unit)}"


def measured_words(part: ClaimPart) -> str:
    """Return the number, of an estimate with its interval, or what it takes to have one."""
    measured, unit = part.measured, part.expectation.unit
    if measured is None:
        return f"needs {part.expectation.needs or 'a run on a GPU'}"
    if not isinstance(measured, Estimate):
        return _number(measured, unit)
    return (
        f"{_number(measured.value, unit)} ({_number(measured.low, unit)} to {_number(measured.high, unit)})"
    )


def _number(value: float, unit: str) -> str:
    """Return three digits or so, a whole number whole, with a decimal prefix before a unit."""
    if not isfinite(value):
        return "not a number" if isnan(value) else "∞" if value > 0 else "−∞"
    if unit:
        return f"{format_count(round(value))}{unit}"
    if value == round(value) and abs(value) < LARGE:
        return f"{value:.0f}"
    if 1e-3 <= abs(value) < LARGE:
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return shorten_exponent(f"{value:.1e}")
