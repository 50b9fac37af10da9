"""What the FlashAttention kernels cost. In: a problem. Out: exact integers.

Letters: B batch, H query heads, D and Dv widths. All sums run over tiles.
"""

from collections.abc import Mapping, Sequence

from attnbench.contract.cost import (
    LSE_BYTES,
    Cost,
    compulsory_bytes,
    from_cache,
    matmul_count,
    tensor_bytes,
    useful_flops,
)
from attnbench.contract.masks import Band
from attnbench.contract.problem import Problem

from .decode_cost import decode_cost
from .programs import (
    DELTA_BYTES,
    STATISTICS_BYTES,
    effective_band,
    kernels_of,
    programs_of,
    visited_tiles,
)
from .splits import decodes
from .tiles import Tile, padded_width

FLOAT32_BYTES = 4


def matmuls(kernel: str, dtype_bytes: int) -> tuple[int, int]:
    """Return the matmuls of a tile over D and over Dv: s and p v; s, dq and dp; s, dk, dp and dv.

    In float32 dq has one more over D, p k (decision 0018).
    """
    if kernel == "forward":
        return 1, 1
    if kernel == "dq":
        return (3, 1) if dtype_bytes == FLOAT32_BYTES else (2, 1)
    return 2, 2


def tile_flops(kernel: str, visited: int, tile: Tile, head_dim: int, value_dim: int, dtype_bytes: int) -> int:
    """FLOPs of ``visited`` whole tiles, heads padded to a power of two."""
    over_d, over_dv = matmuls(kernel, dtype_bytes)
    width = over_d * padded_width(head_dim) + over_dv * padded_width(value_dim)
    return 2 * visited * tile.block_q * tile.block_k * width


def operator_flops(
    kernel: str,
    shapes: Sequence[Sequence[int]],
    query_starts: Sequence[int],
    key_limits: Sequence[int],
    left: int | None,
    right: int | None,
    tile: Sequence[int],
    dtype_bytes: int,
) -> int:
    """FLOPs of an operator, given the shapes of q, k and v and what else it is called with."""
    q, k, v = shapes
    lengths, band, block = (q[2], k[2]), Band(left, right), Tile(*tile)
    visited = visited_tiles(kernel, band, lengths, query_starts, key_limits, block)
    return tile_flops(kernel, q[1] * visited, block, q[3], v[3], dtype_bytes)


def requested_bytes(problem: Problem) -> int:
    """Return the bytes that loads and stores of the mode's kernels ask for."""
    return sum(programs.requested_bytes() for programs in programs_of(problem))


def _operand_bytes(problem: Problem) -> tuple[int, int]:
    """Return ``(operand bytes, peak bytes)``: one operator a kernel, and nothing else.

    Forward reads q, k and v, writes out and lse and, before a backward pass, statistics. dq reads q, k, v,
    do, out and statistics, writes dq and delta. dkdv reads q, k, v, do, statistics and delta, writes dk and
    dv. At the peak there is all that the call has written (``bounds``, 8 bytes a batch row, is kept).
    """
    p, size = problem, tensor_bytes(problem)
    rows = p.batch * p.num_heads * p.seqlen_q
    inputs = size["q"] + size["k"] + size["v"]
    written = moved = 0
    for kernel in kernels_of(p):
        if kernel == "forward":
            kept = rows * STATISTICS_BYTES if p.needs_gradients else 0
            read, results = inputs, size["out"] + size["lse"] + kept
        elif kernel == "dq":
            read = inputs + 2 * size["out"] + rows * STATISTICS_BYTES
            results = size["q"] + rows * DELTA_BYTES
        else:
            read = inputs + size["out"] + rows * (STATISTICS_BYTES + DELTA_BYTES)
            results = size["k"] + size["v"]
        moved += read + results
        written += results
    return moved, written


@from_cache
def cost(problem: Problem) -> Cost:
    """Exact counts of one call.

    Executed FLOPs are those of whole tiles with heads padded to a power of two: 2 matmuls a forward tile, 3
    for dq (4 in float32) and 4 for dk and dv. A visited tile evaluates an exponential a pair, and forward one
    more to rescale each row.
    """
    p = problem
    if decodes(p):
        return decode_cost(p)
    launched = programs_of(p)
    executed = exponentials = 0
    for programs in launched:
        kernel, visited, tile = programs.kernel, programs.visited(), programs.tile
        executed += tile_flops(kernel, visited, tile, p.head_dim, p.head_dim_v, p.dtype_bytes)
        exponentials += visited * tile.block_q * (tile.block_k + (kernel == "forward"))
    operand_bytes, peak_bytes = _operand_bytes(p)
    size, rows = tensor_bytes(p), p.batch * p.num_heads * p.seqlen_q
    saved_bytes = size["q"] + size["k"] + size["v"] + size["out"] + rows * STATISTICS_BYTES
    return Cost(
        flops=useful_flops(p),
        executed_flops=executed,
        exponentials=exponentials,
        compulsory_bytes=compulsory_bytes(p),
        operand_bytes=operand_bytes,
        requested_bytes=sum(programs.requested_bytes() for programs in launched),
        peak_bytes=peak_bytes,
        saved_bytes=saved_bytes if p.needs_gradients else None,
        leading=_leading(p, {programs.kernel: programs.tile for programs in launched}),
    )


def _leading(problem: Problem, tiles: Mapping[str, Tile]) -> dict[str, str]:
    """Return the leading terms; those of bytes hold where a sequence is longer than a tile."""
    p, w = problem, problem.dtype_bytes
    pairs, kernels = _leading_pairs(p), tuple(tiles)
    over_d, over_dv = (
        sum(column) for column in zip(*(matmuls(kernel, w) for kernel in kernels), strict=True)
    )
    requested = [
        f"{w}*B*H*{pairs}*(d+e)/{tile.block_k if kernel == 'dkdv' else tile.block_q}"
        for kernel, tile in tiles.items()
    ]
    operand = {
        "forward": f"{w}*B*(H*n + G*m)*(d+e)",
        "dq": f"{w}*B*(H*n*(2*d+2*e) + G*m*(d+e))",
        "dkdv": f"{w}*B*(H*n*(d+e) + 2*G*m*(d+e))",
    }
    results = {
        "forward": f"B*H*n*({w}*e + {LSE_BYTES + (STATISTICS_BYTES if p.needs_gradients else 0)})",
        "dq": f"B*H*n*({w}*d + {DELTA_BYTES})",
        "dkdv": f"{w}*B*G*m*(d+e)",
    }
    return {
        "flops": f"{matmul_count(p)}*B*H*{pairs}*(d+e)",
        "executed_flops": f"2*B*H*{pairs}*({over_d}*d+{over_dv}*e)",
        "exponentials": f"{len(kernels)}*B*H*{pairs}",
        "operand_bytes": " + ".join(operand[kernel] for kernel in kernels),
        "requested_bytes": " + ".join(requested),
        "peak_bytes": " + ".join(results[kernel] for kernel in kernels),
    }


def _leading_pairs(problem: Problem) -> str:
    """Visible pairs of a head to leading order, as people write it."""
    left, right = effective_band(problem)
    if left is None and right is None:
        return "n*m"
    if left is None:
        return "n*(m - n/2)"
    return "n*W" if right == 0 else "2*n*W"
