"""The checks that a claim can name. In: what a claim says of its measurements. Out: numbers by name.

A check is a function of keywords that come from the claim, and takes implementations by name, so that the
same check measures somebody's file. Checks that interpret kernels need ``TRITON_INTERPRET=1``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnbench.contract.errors import UsageError, nearest

from .counts import attention_counts, largest_score_matrix
from .gpt2_traffic import gpt2_training_bytes
from .growth import growth
from .heads import heads_against_one
from .hiding import causal_leaks, padding_leaks
from .order import permutation_differences
from .paths import path_growth
from .scores import score_statistics
from .tiles import requested_growth
from .weights import output_rows, row_sums

CHECKS: dict[str, Callable[..., Mapping[str, float]]] = {
    "attention-counts": attention_counts,
    "causal-leaks": causal_leaks,
    "gpt2-training-bytes": gpt2_training_bytes,
    "growth": growth,
    "heads-against-one": heads_against_one,
    "largest-score-matrix": largest_score_matrix,
    "output-rows": output_rows,
    "padding-leaks": padding_leaks,
    "path-growth": path_growth,
    "permutation-differences": permutation_differences,
    "requested-growth": requested_growth,
    "row-sums": row_sums,
    "score-statistics": score_statistics,
}


def measure_claim(measurements: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return what the measurements of one claim find.

    Each names its ``check``, holds the keywords of that, and may hold a ``name``, which is put before the
    names of its numbers (``long.power_of_n``).

    Raises:
        UsageError: no check of that name, or an implementation that can't be used here.
    """
    found: dict[str, float] = {}
    for measurement in measurements:
        given = dict(measurement)
        check, name = given.pop("check"), given.pop("name", "")
        if check not in CHECKS:
            raise UsageError(
                f"unknown check {check!r}{nearest(check, CHECKS)}; there are {', '.join(CHECKS)}"
            )
        prefix = f"{name}." if name else ""
        found |= {f"{prefix}{quantity}": value for quantity, value in CHECKS[check](**given).items()}
    return found
