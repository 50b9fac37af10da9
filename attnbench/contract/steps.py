"""Geometry of decoding: what a core is asked in one step. In: a problem, positions held and added. Out: a
problem.

The state is a key/value cache. Under a causal band no query sees further back than its window, so the cache
is a ring buffer of that many slots: position p lies in slot ``p % slots``, over the one that left the window.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .masks import Full, Mask
from .problem import Problem


def window_of(mask: Mask) -> int | None:
    """Return how many keys a query can see at most, its own included, under a band that ends at the
    diagonal; ``None`` for every other mask.
    """
    band = mask.band()
    return None if band is None or band.left is None or band.right != 0 else band.left + 1


def cache_slots(problem: Problem, max_seqlen: int) -> int:
    """Return how many positions of a row a cache has to keep."""
    window = window_of(problem.mask)
    return max_seqlen if window is None else min(window, max_seqlen)


class Step(NamedTuple):
    """One call of the core.

    ``kept`` says how many of the latest positions of each row go, in order, before the chunk; ``None`` that
    the first ``problem.seqlen_k`` slots are read as they lie, the chunk among them.
    """

    problem: Problem
    kept: tuple[int, ...] | None


def plan_step(
    problem: Problem, slots: int, starts: Sequence[int], added: Sequence[int], chunk: int, *, in_order: bool
) -> Step:
    """Return the step that appends ``chunk`` tokens, ``added[b]`` of them valid, to ``starts[b]`` positions.

    Key lengths and query starts are stated only where rows differ, so that implementations without them can
    do the rest. A full ring is read as it lies by a single query, which sees all of it, unless the core has
    to get its keys ``in_order``.
    """
    ends = [start + count for start, count in zip(starts, added, strict=True)]
    if max(ends, default=0) <= slots:
        return Step(_asked(problem, starts, ends, chunk, max(ends, default=0)), None)
    if not in_order and chunk == 1 and min(added) == 1 and min(ends) >= slots:
        last = [slots - 1] * problem.batch
        return Step(_asked(problem, last, [slots] * problem.batch, 1, slots), None)
    kept = tuple(min(start, slots - 1) for start in starts)
    seen = [before + count for before, count in zip(kept, added, strict=True)]
    return Step(_asked(problem, kept, seen, chunk, max(kept) + chunk), kept)


def _asked(problem: Problem, starts: Sequence[int], ends: Sequence[int], chunk: int, held: int) -> Problem:
    return problem.replace(
        seqlen_q=chunk,
        seqlen_k=held,
        key_lengths=None if set(ends) <= {held} else tuple(ends),
        query_start=None if set(starts) <= {held - chunk} else tuple(starts),
    )


def last_step(problem: Problem, *, in_order: bool) -> Step:
    """Return the step that a problem of mode ``decode`` stands for; of others the problem as it is.

    The state then holds the keys before the queries, row by row. A problem whose queries are not the last of
    their row is none that a state could give, and stays as it is.
    """
    p = problem
    ends = [start + p.seqlen_q for start in p.query_starts]
    if p.mode != "decode" or ends != list(p.key_limits) or min(p.query_starts, default=0) < 0:
        return Step(p, None)
    added = [p.seqlen_q] * p.batch
    slots = cache_slots(p, p.seqlen_k)
    return plan_step(p, slots, p.query_starts, added, p.seqlen_q, in_order=in_order)


def decoded(problem: Problem, *, in_order: bool) -> Problem:
    """Return what the core is asked in that step."""
    return last_step(problem, in_order=in_order).problem


def reading(problem: Problem) -> Problem:
    """Return what a core is asked that reads its state and adds nothing: queries alone, nothing hidden."""
    return problem.replace(seqlen_k=0, mask=Full(), key_lengths=None, query_start=None)
