"""What a tiled kernel asks for, by the size of its tiles. In: an implementation. Out: powers of n, d and M.

The kernel is interpreted; a few of its programs stand for all (``contract/sampling.py``), to the byte.
"""

from collections.abc import Mapping, Sequence

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import require_support
from attnbench.contract.masks import Full
from attnbench.contract.problem import Problem
from attnbench.measure.inputs import make_inputs
from attnbench.measure.interpreter import sample_kernels, trace_kernels

from .growth import secant

TILES_HELD = 4
"""Tiles of B × d in the FlashAttention paper's memory of M elements: q, k, v and out, so M = 4·d·B."""


def requested_growth(
    *, implementation: str, n: Sequence[int], d: Sequence[int], m: Sequence[int], dtype: str = "float32"
) -> dict[str, float]:
    """Return ``power_of_n``, ``power_of_d`` and ``power_of_m`` of the requested bytes of a forward pass, each
    letter from its first to its second value, the others at their first.

    Tiles are as large as a memory of ``m`` elements allows: wider heads leave room for fewer rows.
    """

    def requested(at: Mapping[str, int]) -> int:
        rows = at["m"] // (TILES_HELD * at["d"])
        return requested_bytes(implementation, at["n"], at["d"], rows, dtype)

    letters = {"n": n, "d": d, "m": m}
    first = {letter: values[0] for letter, values in letters.items()}
    begin = requested(first)
    return {
        f"power_of_{letter}": secant((one, begin), (other, requested({**first, letter: other})))
        for letter, (one, other) in letters.items()
    }


def requested_bytes(implementation: str, seqlen: int, head_dim: int, rows: int, dtype: str) -> int:
    """Return what loads and stores ask for with tiles of ``rows`` queries and as many keys."""
    core = get_implementation(implementation)
    problem = Problem(
        seqlen_q=seqlen,
        num_heads=1,
        head_dim=head_dim,
        dtype=dtype,
        mask=Full(),
        options={"block_q": rows, "block_k": rows},
    )
    require_support(core, problem)
    inputs = make_inputs(problem)
    with trace_kernels(sample_kernels(core, problem)) as trace:
        core.attention(inputs["q"], inputs["k"], inputs["v"], problem=problem)
    return trace.requested_bytes
