"""What the words of a record mean: statuses and verdicts. In: a word. Out: how people say it."""

from collections.abc import Sequence

STATUS_WORDS = {
    "ok": "right, and measured",
    "unsupported": "the implementation does not offer this",
    "incorrect": "outside its error budget: it gets no speed",
    "oom": "out of memory, predicted or hit",
    "timeout": "took longer than the limit",
    "crashed": "the process died",
    "error": "raised an error",
}
VERDICT_WORDS = {
    "valid": "nothing speaks against it",
    "few_samples": "too few samples for an interval of 95 %",
    "noisy": "the interval of the median is wide",
    "shared": "other processes took part of the processor meanwhile",
    "throttled": "the hardware slowed itself down, or its clock was below the usual one of the run",
    "below_resolution": "shorter than the timer can tell",
    "implausible": "faster than the hardware allows",
}


def spaced(word: str) -> str:
    """Return a verdict as people say it: ``few samples``."""
    return word.replace("_", " ")


def with_care(doubts: Sequence[str]) -> str:
    """Return what speaks against a value, in brackets behind it; empty if nothing does."""
    return f" (take with care: {', '.join(map(spaced, doubts))})" if doubts else ""
