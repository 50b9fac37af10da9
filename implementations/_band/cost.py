"""What the band path costs: sums over its operations. In: a problem. Out: exact integers.

Letters: r rows and c keys of a tile, t tiles of an operation, w bytes of a score (4, or 8 for float64).
"""

from attnbench.contract.cost import (
    Cost,
    compulsory_bytes,
    from_cache,
    matmul_count,
    tensor_bytes,
    useful_flops,
)
from attnbench.contract.problem import Problem
from attnbench.implementations._shared.batch_runs import batch_runs

from .tiles import Operation, band_of, hidden_corners, operations

MATMUL_WIDTHS = {"fwd": (1, 1), "decode": (1, 1), "bwd": (3, 2), "fwd_bwd": (4, 3)}
"""Matmuls of a mode over D and over Dv: forward s and p v; backward s again, dq and dk, dp and dv."""


def _scores(problem: Problem) -> int:
    """Scores that one pass makes."""
    runs = batch_runs(problem)
    return sum(o.num_tiles * o.rows * o.keys for run in runs for o in operations(problem, run))


def _copies_rows(problem: Problem, o: Operation, width: int) -> bool:
    """Whether a product goes through a buffer: in 16 bits, or into heads that hold other rows too."""
    apart = o.num_tiles > 1 and o.head_step > 0 and width > 0
    return problem.dtype_bytes < 4 or (apart and (o.rows < problem.seqlen_q or problem.group_size > 1))


def _forward_bytes(problem: Problem) -> tuple[int, int]:
    """Return ``(operand bytes, peak bytes)`` of the forward chain on contiguous inputs.

    Per operation ``q kᵀ`` reads q and k and writes the scores S = t·r·c·w; each hidden corner reads its
    triangle and fills its columns in place; softmax reads and writes S; ``p v`` reads S and v and writes
    out. A triangle is made once, in two steps. Keys that tiles of one operation share are read once. 16-bit
    inputs are widened first, rows of out narrowed. At the peak there are all of these buffers and out.
    """
    p, w = problem, max(4, problem.dtype_bytes)
    inputs = moved = scores_buffer = rows_buffer = 0
    triangles = set()
    for run in batch_runs(p):
        band = band_of(p, run)
        first, last = band.seeing
        inputs += run.batch * p.seqlen_q * p.num_heads * p.head_dim
        inputs += run.batch * band.num_keys * p.num_kv_heads * (p.head_dim + p.head_dim_v)
        moved += run.batch * p.num_heads * (first + p.seqlen_q - last) * p.head_dim_v * p.dtype_bytes
        for o in operations(p, run):
            scores, rows = o.num_tiles * o.rows * o.keys * w, o.num_tiles * o.rows * p.head_dim_v * w
            slots = (
                min(o.num_tiles * o.keys, (o.num_tiles - 1) * o.step + o.keys)
                if o.step
                else o.num_tiles * o.keys
            )
            moved += o.num_tiles * o.rows * p.head_dim * w + slots * (p.head_dim + p.head_dim_v) * w + rows
            moved += 4 * scores
            for corner in hidden_corners(o, band):
                moved += corner.rows * corner.columns * (1 + 2 * o.num_tiles * w)
                triangles.add(corner._replace(first=0))
            scores_buffer = max(scores_buffer, scores)
            if _copies_rows(p, o, p.head_dim_v):
                moved += rows + o.num_tiles * o.rows * p.head_dim_v * p.dtype_bytes
                rows_buffer = max(rows_buffer, rows)
    triangle_bytes = sum(triangle.rows * triangle.columns for triangle in triangles)
    moved += 3 * triangle_bytes
    peak = scores_buffer + rows_buffer + triangle_bytes + tensor_bytes(p)["out"]
    if p.dtype_bytes < 4:
        moved += inputs * (p.dtype_bytes + w)
        peak += inputs * w
    return moved, peak


def _buffer_bytes(problem: Problem) -> dict[str, int]:
    """Return the size of each buffer of a backward pass, grown to the largest operation, and of triangles."""
    p, w = problem, max(4, problem.dtype_bytes)
    sizes = {"scores": 0, "ds": 0, "keys": 0, "rows": 0}
    triangles = set()
    for run in batch_runs(p):
        band = band_of(p, run)
        for o in operations(p, run):
            scores, keys = o.num_tiles * o.rows * o.keys, o.num_tiles * o.keys * max(p.head_dim, p.head_dim_v)
            rows = o.num_tiles * o.rows * p.head_dim if _copies_rows(p, o, p.head_dim) else 0
            for name, size in (("scores", scores), ("ds", scores), ("keys", keys), ("rows", rows)):
                sizes[name] = max(sizes[name], size * w)
            triangles |= {corner._replace(first=0) for corner in hidden_corners(o, band)}
    return {**sizes, "triangles": sum(triangle.rows * triangle.columns for triangle in triangles)}


def _backward_peak(problem: Problem) -> int:
    """Return the peak of the backward chain, beside inputs and upstream gradient, out among it.

    dk and dv are sums, wide, until the end: in 16 bits they are narrowed while buffers and wide inputs live.
    """
    p, w, size = problem, max(4, problem.dtype_bytes), tensor_bytes(problem)
    sums = (size["k"] + size["v"]) // p.dtype_bytes * w
    peak = size["out"] + size["q"] + sums + sum(_buffer_bytes(p).values())
    if p.dtype_bytes < 4:
        seen = sum(run.batch * band_of(p, run).num_keys for run in batch_runs(p)) * p.num_kv_heads
        peak += (size["q"] + size["out"]) // p.dtype_bytes * w + seen * (p.head_dim + p.head_dim_v) * w
        peak += size["k"] + size["v"]
    return peak


@from_cache
def band_cost(problem: Problem) -> Cost:
    """Exact counts of the band path; operand bytes for a plain forward call on contiguous inputs, and peaks.

    Operand bytes are left out with gradients, both with ``lse``, and the peak for batch rows of different
    geometry.
    """
    p = problem
    scores = _scores(p)
    over_d, over_dv = MATMUL_WIDTHS[p.mode]
    operand_bytes = peak_bytes = None
    if not p.option("return_lse", False):
        operand_bytes, peak_bytes = _forward_bytes(p)
        if p.needs_gradients:
            operand_bytes, peak_bytes = None, max(peak_bytes, _backward_peak(p))
        if len(list(batch_runs(p))) > 1:
            peak_bytes = None
    size = tensor_bytes(p)
    band = p.mask.band()
    window = "W" if band and band.right == 0 else "2*W"
    passes = 2 if p.mode == "fwd_bwd" else 1
    return Cost(
        flops=useful_flops(p),
        executed_flops=2 * scores * (over_d * p.head_dim + over_dv * p.head_dim_v),
        exponentials=passes * scores,
        compulsory_bytes=compulsory_bytes(p),
        operand_bytes=operand_bytes,
        peak_bytes=peak_bytes,
        saved_bytes=size["q"] + size["k"] + size["v"] if p.needs_gradients else None,
        leading={
            "flops": f"{matmul_count(p)}*B*H*n*{window}*(d+e)",
            "executed_flops": f"2*B*H*n*{window}*({over_d}*d+{over_dv}*e)",
            "exponentials": f"{passes}*B*H*n*{window}",
            "peak_bytes": f"{p.dtype_bytes}*B*H*n*e",
        },
    )
