"""Sentences about attention, judged. In: claims and what was measured for them. Out: a row a claim with its
verdict.

Claims are data (``reports/published/claims.toml``). A verdict follows from what a claim expects, what was
measured, and the claim's tolerance, from nothing else.
"""

import tomllib
from collections.abc import Collection, Mapping
from importlib.resources import files
from math import isfinite
from typing import Any, Literal, NamedTuple

import msgspec

from attnbench.contract.errors import UsageError, nearest

FILE = "claims.toml"
Needs = Literal["nothing", "tensors", "a run", "a GPU"]
Verdict = Literal["holds", "fails", "needs a GPU"]


class Estimate(NamedTuple):
    """A measured number, and the interval in which it lies."""

    value: float
    low: float
    high: float


Measured = Mapping[str, float | Estimate]
"""What was measured for one claim, by quantity. What could not be measured is not in it."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one measured quantity has to be: equal to a number, or within limits."""

    quantity: str
    text: str
    """What it is, for people."""
    unit: str = ""
    equals: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    tolerance: float = 0.0
    """How far from that it may be, in its own unit."""
    needs: Literal["", "a run"] = ""
    """Where it needs more than its claim does."""
    of: dict[str, str] = {}
    """What of a run is meant (`claim_runs.py`)."""

    def __post_init__(self) -> None:
        """Refuse an expectation of nothing, or of two things."""
        limits = (self.at_least, self.at_most)
        if (self.equals is None) == (limits == (None, None)):
            raise ValueError(f"{self.quantity}: give equals, or at_least, at_most or both")

    @property
    def accepted(self) -> tuple[float, float]:
        """The least and the largest number that it is met by."""
        low = self.at_least if self.equals is None else self.equals
        high = self.at_most if self.equals is None else self.equals
        return (
            float("-inf") if low is None else low - self.tolerance,
            float("inf") if high is None else high + self.tolerance,
        )

    def met_by(self, measured: float | Estimate) -> bool:
        """Whether a number is accepted, of an estimate any in its interval; NaN never is."""
        low, high = self.accepted
        if isinstance(measured, Estimate):
            return measured.low <= high and low <= measured.high
        return low <= measured <= high


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sentence, who says it, how it is measured, and what has to come out."""

    id: str
    statement: str
    source: str
    needs: Needs
    measure: list[dict[str, Any]] = []
    """Checks of ``measure/claims`` with their keywords; none where records of a run alone can tell."""
    expected: list[Expectation]


class ClaimPart(NamedTuple):
    """One expectation beside what was measured, if anything was."""

    expectation: Expectation
    measured: float | Estimate | None

    @property
    def holds(self) -> bool | None:
        """Whether it is met; None where nothing was measured."""
        return None if self.measured is None else self.expectation.met_by(self.measured)


class ClaimRow(NamedTuple):
    """A claim, judged."""

    claim: Claim
    parts: tuple[ClaimPart, ...]

    @property
    def verdict(self) -> Verdict:
        """``fails`` if anything that was measured does; without any measurement it takes a GPU to tell."""
        judged = [part.holds for part in self.parts if part.holds is not None]
        if not judged:
            return "needs a GPU"
        return "holds" if all(judged) else "fails"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data: what is expected and measured by quantity, null for what is not there."""
        return {
            "id": self.claim.id,
            "statement": self.claim.statement,
            "source": self.claim.source,
            "expected": {part.expectation.quantity: _limits(part.expectation) for part in self.parts},
            "measured": {part.expectation.quantity: _plain(part.measured) for part in self.parts},
            "verdict": self.verdict,
            "met": {part.expectation.quantity: part.holds for part in self.parts},
            "needs": self.claim.needs,
        }


def load_claims(only: Collection[str] = ()) -> list[Claim]:
    """Return the claims of the data file, or those of these ids.

    Raises:
        UsageError: an id that is not there.
    """
    text = (files("attnbench") / "reports" / "published" / FILE).read_text("utf-8")
    claims = msgspec.convert(tomllib.loads(text)["claim"], list[Claim])
    known = [claim.id for claim in claims]
    for one in only:
        if one not in known:
            raise UsageError(f"unknown claim {one!r}{nearest(one, known)}; there are {', '.join(known)}")
    return [claim for claim in claims if not only or claim.id in only]


def judge(claim: Claim, measured: Measured) -> ClaimRow:
    """Set what was measured beside what is expected."""
    return ClaimRow(claim, tuple(ClaimPart(one, measured.get(one.quantity)) for one in claim.expected))


def _limits(expectation: Expectation) -> dict[str, float]:
    named = {name: getattr(expectation, name) for name in ("equals", "at_least", "at_most", "tolerance")}
    return {name: value for name, value in named.items() if value is not None}


def _plain(measured: float | Estimate | None) -> Any:
    """Return what JSON can hold: null for what is not there or not finite."""
    if isinstance(measured, Estimate):
        return {name: _plain(value) for name, value in measured._asdict().items()}
    return measured if measured is not None and isfinite(measured) else None
