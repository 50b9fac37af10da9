"""Batch rows that share their geometry. In: a problem. Out: slices of the batch."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from attnbench.contract.problem import Problem


class BatchRun(NamedTuple):
    """Neighbouring batch rows: their first query stands at ``query_start``, ``num_keys`` keys exist."""

    rows: slice
    query_start: int
    num_keys: int

    @property
    def batch(self) -> int:
        """How many batch rows there are."""
        return int(self.rows.stop - self.rows.start)


def batch_runs(problem: Problem) -> Iterator[BatchRun]:
    """Yield runs of equal geometry: one, unless ``query_start`` or ``key_lengths`` differ between rows."""
    kinds = problem.kinds_of_rows()
    if len(kinds) == 1 and problem.batch:
        yield BatchRun(slice(0, problem.batch), *next(iter(kinds)))
        return
    geometry = list(zip(problem.query_starts, problem.key_limits, strict=True))
    for (start, limit), run in groupby(range(problem.batch), key=geometry.__getitem__):
        rows = list(run)
        yield BatchRun(slice(rows[0], rows[-1] + 1), start, limit)
