"""What linear attention by its kernels costs. In: a problem. Out: exact integers.

Letters: B batch, H query heads, G key/value heads, D and Dv widths, E = Dv + 1, C chunk.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attnbench.contract.cost import Cost, compulsory_bytes, tensor_bytes
from attnbench.contract.problem import Problem

from . import programs
from .cost import PASSES, saved_bytes, useful_flops
from .geometry import Row
from .programs import FLOAT_BYTES, Shape, Work, kinds, make_shape, shape_of, state_size
from .tiles import LinearTile

Part = tuple[Callable[[Shape, Row], Work], bool]
"""The work of one launch, and whether its programs are by query heads."""
OPERATORS: dict[str, tuple[Part, ...]] = {
    "states": ((programs.states, False), (programs.scan, False)),
    "output": ((programs.output, True),),
    "dq": ((programs.dq, True),),
    "query_states": ((programs.query_states, False), (partial(programs.scan, reverse=True), False)),
    "dkdv": tuple((partial(programs.keys_gradient, of_keys=of_keys), False) for of_keys in (True, False)),
}
"""The launches of each operator."""
DIRECTIONS = {"forward": ("states", "output"), "backward": ("states", "dq", "query_states", "dkdv")}
"""The operators of each pass."""


def operator_work(shape: Shape, operator: str) -> tuple[int, int, int]:
    """Return ``(requested bytes, FLOPs, exponentials)`` of an operator."""
    totals = [0, 0, 0]
    if shape.where.key_chunks:
        for work, by_query_heads in OPERATORS[operator]:
            heads = shape.heads if by_query_heads else shape.kv_heads
            for _, row, alike in kinds(shape.where):
                for index, values in enumerate(work(shape, row)):
                    totals[index] += alike * heads * int(values.sum())
    return totals[0], totals[1], totals[2]


def operator_flops(
    operator: str, shapes: Sequence[Sequence[int]], form: Sequence[Any], dtype_bytes: int = FLOAT_BYTES
) -> int:
    """FLOPs of an operator's products on whole blocks, heads padded to a power of two.

    Args:
        operator: its name, without ``linear_``.
        shapes: those of q, k and v.
        form: query starts, key limits, whether causal, and the tile.
        dtype_bytes: of an element of theirs; only products with a state depend on it.
    """
    (_, heads, seqlen_q, d), (_, kv_heads, seqlen_k, _), v = shapes
    starts, limits, causal, tile = form
    pairs = (heads, kv_heads), (seqlen_q, seqlen_k), (d, v[3])
    return operator_work(
        make_shape(*pairs, dtype_bytes, (starts, limits, causal), LinearTile(*tile)), operator
    )[1]


def _operand_bytes(problem: Problem) -> tuple[int, int]:
    """Return ``(operand bytes, peak bytes)``.

    The states of the keys are alive until the output, or dq, is there, those of the queries until the end.
    """
    p, size = problem, tensor_bytes(problem)
    forward, backward = PASSES[p.mode]
    keys, rows = size["k"] + size["v"], FLOAT_BYTES * p.batch * p.num_heads * p.seqlen_q
    per_chunk = FLOAT_BYTES * p.batch * p.num_kv_heads * state_size(p.head_dim, p.head_dim_v)
    moved = peak = kept = 0
    if forward:
        states = per_chunk * shape_of(p, "forward").where.key_chunks
        kept = size["out"] + rows
        moved += keys + states + size["q"] + keys + states + kept
        peak = states + kept
    if backward:
        where = shape_of(p, "backward").where
        states, later = (per_chunk * count for count in (where.key_chunks, where.query_chunks))
        given = size["q"] + size["out"] + rows  # q, upstream gradient, denominators
        gradient = size["q"] + rows
        moved += keys + states
        moved += given + keys + size["out"] + states + gradient
        moved += given + rows + later
        moved += given + keys + rows + later + keys
        peak = max(peak, kept + states + gradient, kept + gradient + later + keys)
    return moved, peak


def kernel_cost(problem: Problem) -> Cost:
    """Exact counts of one call.

    Executed FLOPs are those of products of whole blocks with widths padded to powers of two; the states of
    the keys are computed again in a backward pass. Exponentials are those of whole blocks too.
    """
    p = problem
    passes = PASSES[p.mode]
    requested = executed = exponentials = 0
    for wanted, (direction, operators) in zip(passes, DIRECTIONS.items(), strict=True):
        if wanted:
            shape = shape_of(p, direction)
            for operator in operators:
                sums = operator_work(shape, operator)
                requested, executed, exponentials = (
                    total + part
                    for total, part in zip((requested, executed, exponentials), sums, strict=True)
                )
    operand_bytes, peak_bytes = _operand_bytes(p)
    return Cost(
        flops=useful_flops(p),
        executed_flops=executed,
        exponentials=exponentials,
        compulsory_bytes=compulsory_bytes(p),
        operand_bytes=operand_bytes,
        requested_bytes=requested,
        peak_bytes=peak_bytes,
        saved_bytes=saved_bytes(p),
        leading={"flops": f"{2 * (passes[0] + 2 * passes[1])}*B*(H*n + G*m)*d*e"},
    )
