"""What flash decoding costs. In: a problem. Out: exact integers."""

from attnbench.contract.cost import LSE_BYTES, Cost, compulsory_bytes, tensor_bytes, useful_flops
from attnbench.contract.problem import Problem

from .programs import effective_band
from .splits import PART_BYTES, PART_STATISTICS_BYTES, DecodePrograms
from .tiles import padded_width


def decode_cost(problem: Problem) -> Cost:
    """Exact counts of one call on keys as they lie.

    Operands: the first kernel reads q, k and v and writes out and lse; if keys are split it writes a part of
    each, in float32, for every split, which the merge reads. At the peak there is all that was written
    (``bounds``, 8 bytes a batch row, is kept).
    """
    p, size, programs = problem, tensor_bytes(problem), DecodePrograms(problem)
    inputs, results = size["q"] + size["k"] + size["v"], size["out"] + size["lse"]
    row_parts = p.head_dim_v * PART_BYTES + PART_STATISTICS_BYTES
    parts = programs.splits * programs.all_rows * row_parts if programs.is_split else 0
    tile = programs.tile
    width = padded_width(p.head_dim) + padded_width(p.head_dim_v)
    return Cost(
        flops=useful_flops(p),
        executed_flops=2 * programs.visited() * tile.block_q * tile.block_k * width,
        exponentials=programs.exponentials(),
        compulsory_bytes=compulsory_bytes(p),
        operand_bytes=inputs + results + 2 * parts,
        requested_bytes=programs.requested_bytes(),
        peak_bytes=results + parts,
        leading=_leading(p, programs),
    )


def _leading(problem: Problem, programs: DecodePrograms) -> dict[str, str]:
    """Return the leading terms, of many keys for a query."""
    p, w, tile = problem, problem.dtype_bytes, programs.tile
    left, right = effective_band(p)
    keys = "m" if left is None else "W" if right == 0 else "2*W"
    rows, row_tiles, splits = tile.block_q, programs.row_tiles, programs.splits
    parts = f" + {splits}*B*H*n*({PART_BYTES}*e + {PART_STATISTICS_BYTES})" if programs.is_split else ""
    return {
        "flops": f"2*B*H*n*{keys}*(d+e)",
        "executed_flops": f"2*B*G*{row_tiles * rows}*{keys}*(d+e)",
        "exponentials": f"B*G*{row_tiles * rows}*{keys}",
        "operand_bytes": f"{w}*B*G*m*(d+e)",
        "requested_bytes": f"{w}*{row_tiles}*B*G*{keys}*(d+e)",
        "peak_bytes": f"B*H*n*({w}*e + {LSE_BYTES}){parts}",
    }
