"""The loops of a program. In: which instruction follows which. Out: sets of instructions.

Natural loops by dominators (Aho, Sethi, Ullman: Compilers, 10.4). A jump backwards alone is no loop:
assemblers move rare blocks to the end, from where they jump back.
"""

from __future__ import annotations

from collections.abc import Sequence


def natural_loops(successors: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """Return the instructions of each loop; loops with one head are one. Instruction 0 is where it starts.

    Args:
        successors: for each instruction, those that may come next.
    """
    heads = _block_heads(successors)
    block_of = {}
    ends = {}
    for head, following in zip(heads, [*heads[1:], len(successors)], strict=True):
        block_of[head] = range(head, following)
        ends[head] = [after for after in successors[following - 1] if after < len(successors)]
    order = _postorder(ends)
    sources: dict[int, list[int]] = {head: [] for head in order}
    for head in order:
        for after in ends[head]:
            sources[after].append(head)
    dominators = _dominators(order, sources)
    loops: dict[int, set[int]] = {}
    for head in order:
        for after in ends[head]:
            if after in dominators[head]:
                loops.setdefault(after, {after}).update(_body(after, head, sources))
    return [frozenset(i for head in heads for i in block_of[head]) for heads in loops.values()]


def _block_heads(successors: Sequence[Sequence[int]]) -> list[int]:
    heads = {0}
    for place, after in enumerate(successors):
        if list(after) != [place + 1]:
            heads.update([*after, place + 1])
    return sorted(head for head in heads if head < len(successors))


def _postorder(ends: dict[int, list[int]]) -> list[int]:
    """Return the blocks that can be reached, each after those it leads to (but for jumps back)."""
    seen, order = {0}, []
    stack = [(0, iter(ends[0]))]
    while stack:
        head, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            order.append(head)
            stack.pop()
        elif following not in seen:
            seen.add(following)
            stack.append((following, iter(ends[following])))
    return order


def _dominators(order: list[int], sources: dict[int, list[int]]) -> dict[int, set[int]]:
    """Return for each block the blocks that every way to it passes."""
    everything = set(order)
    dominators = {head: {0} if head == 0 else everything for head in order}
    changed = True
    while changed:
        changed = False
        for head in reversed(order):
            if head == 0:
                continue
            found = {head} | set.intersection(*(dominators[source] for source in sources[head]))
            if found != dominators[head]:
                dominators[head], changed = found, True
    return dominators


def _body(head: int, last: int, sources: dict[int, list[int]]) -> set[int]:
    """Return the blocks from which ``last`` is reached without passing ``head``."""
    body, stack = {head, last}, [last]
    while stack:
        block = stack.pop()
        if block == head:
            continue
        for source in sources[block]:
            if source not in body:
                body.add(source)
                stack.append(source)
    return body
