"""What an attention costs, as exact integers for one problem, and the closed forms that implementations
share.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from .problem import Problem
from .steps import cache_slots, last_step

if TYPE_CHECKING:
    import sympy

LSE_BYTES = 4
"""``lse`` is float32 for every 16- and 32-bit dtype."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Exact integers for a problem, its mode and the tile configuration; ``None`` where no closed form is
    known.

    ``leading`` holds the leading term of a quantity as people write it (``{"flops": "4*B*H*n**2*d"}``), in
    the letters B H G n m (keys, if not n) d e (value width) W C.
    """

    flops: int
    """Useful FLOPs: 2 per multiply-add on visible pairs.

    Forward 2 matmuls, backward 4, forward and backward 6.
    """
    executed_flops: int | None = None
    """FLOPs that the implementation performs: whole tiles, hidden pairs, recomputation."""
    exponentials: int | None = None
    """Evaluations of exp (or of the feature map's exponential)."""
    compulsory_bytes: int
    """Each input that can influence the output read once, each output written once."""
    operand_bytes: int | None = None
    """What each operator reads and writes, each operand once."""
    requested_bytes: int | None = None
    """What the kernel's own loads and stores ask for, re-reads included. Kernels only."""
    peak_bytes: int | None = None
    """Peak of the tensors that the call allocates, beyond its inputs."""
    saved_bytes: int | None = None
    """What the forward pass keeps for its backward, of its inputs too. Modes with gradients only."""
    leading: Mapping[str, str] = field(default_factory=dict)

    def theory(self) -> dict[str, int]:
        """Return the integers that a record holds beside what was measured, by name; no unknown ones."""
        return {name: value for name, value in self._integers().items() if value is not None}

    def unknown(self) -> list[str]:
        """Return the names of the integers without a closed form."""
        return [name for name, value in self._integers().items() if value is None]

    def _integers(self) -> dict[str, int | None]:
        unrecorded = ("leading", "saved_bytes")
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in unrecorded}

    def leading_term(self, quantity: str) -> "sympy.Expr":
        """Return the leading term of ``quantity`` as a sympy expression.

        Raises:
            KeyError: the implementation gives none for this quantity.
        """
        import sympy

        names: dict[str, Any] = {
            name: sympy.Symbol(name, positive=True) for name in ["B", "H", "G", "n", "m", "d", "e", "W", "C"]
        }
        return sympy.sympify(self.leading[quantity], locals=names)


def matmul_count(problem: Problem) -> int:
    """Return how many n×n matmuls a mode needs at least: forward 2, backward 4 (dV, dP, dQ, dK)."""
    return {"fwd": 2, "decode": 2, "bwd": 4, "fwd_bwd": 6}[problem.mode]


def matmul_flops(problem: Problem, pairs: int) -> int:
    """FLOPs of the mode's matmuls over ``pairs`` (query, key) pairs: half of them as wide as ``head_dim``,
    half as ``head_dim_v``.

    Forward ``q kᵀ`` (d) and ``p v`` (e); backward ``dp = do vᵀ`` (e), ``dv = pᵀ do`` (e), ``dq`` (d) and
    ``dk`` (d).
    """
    return pairs * matmul_count(problem) * (problem.head_dim + problem.head_dim_v)


def useful_flops(problem: Problem) -> int:
    """FLOPs on visible pairs only; exact for every mask, positions and key lengths."""
    return matmul_flops(problem, problem.pairs())


def dense_flops(problem: Problem) -> int:
    """FLOPs if every query saw every slot: ``Sq · Sk`` pairs a head."""
    return matmul_flops(problem, problem.batch * problem.num_heads * problem.seqlen_q * problem.seqlen_k)


def tensor_bytes(problem: Problem) -> dict[str, int]:
    """Bytes of the whole ``q``, ``k``, ``v``, ``out`` and ``lse``."""
    p, size = problem, problem.dtype_bytes
    return {
        "q": p.batch * p.num_heads * p.seqlen_q * p.head_dim * size,
        "k": p.batch * p.num_kv_heads * p.seqlen_k * p.head_dim * size,
        "v": p.batch * p.num_kv_heads * p.seqlen_k * p.head_dim_v * size,
        "out": p.batch * p.num_heads * p.seqlen_q * p.head_dim_v * size,
        "lse": p.batch * p.num_heads * p.seqlen_q * max(LSE_BYTES, size if p.dtype == "float64" else 0),
    }


def compulsory_bytes(problem: Problem) -> int:
    """Bytes that no algorithm can save: inputs that can influence the output read once, outputs written once.

    Forward reads the q rows that see a key and the k and v slots that are seen, and writes out. Backward
    reads the same, the upstream gradient of those rows, and writes dq, dk and dv whole. Forward and backward
    together read q, k, v and the gradient once.
    """
    return compulsory_read_bytes(problem) + _compulsory_written_bytes(problem)


def compulsory_read_bytes(problem: Problem) -> int:
    """The part of ``compulsory_bytes`` that is read."""
    p = problem
    rows, slots = p.queries_seeing(), p.keys_seen()
    read = (rows * p.head_dim + slots * (p.head_dim + p.head_dim_v)) * p.dtype_bytes
    return read + rows * p.head_dim_v * p.dtype_bytes if p.mode in ("bwd", "fwd_bwd") else read


def _compulsory_written_bytes(problem: Problem) -> int:
    whole = tensor_bytes(problem)
    gradients = whole["q"] + whole["k"] + whole["v"]
    out = whole["out"]
    return {"fwd": out, "decode": out, "bwd": gradients, "fwd_bwd": out + gradients}[problem.mode]


def from_cache(cost: Callable[[Problem], Cost]) -> Callable[[Problem], Cost]:
    """Let ``cost`` describe, in mode ``decode``, a step that reads a key/value cache (``state.py``).

    The core is then asked for what the cache holds, under a causal band no more than the window, and operand
    bytes include the way of the new keys and values into it: read once, written once. A chunk that a ring has
    no free slots for is attended with behind a copy of what the ring keeps: operand bytes and the peak
    include the copy. Where rows differ in length neither is stated: which slots are gathered and written then
    goes through index tensors. Other modes are left as they are.
    """

    @wraps(cost)
    def of_step(problem: Problem) -> Cost:
        p = problem
        if p.mode != "decode":
            return cost(p)
        step = last_step(p, in_order=False)
        found = cost(step.problem)
        if len(p.kinds_of_rows()) > 1:
            return replace(found, operand_bytes=None, peak_bytes=None)
        position = p.batch * p.num_kv_heads * (p.head_dim + p.head_dim_v) * p.dtype_bytes
        copied = 0 if step.kept is None else position * step.problem.seqlen_k
        written = position * min(p.seqlen_q, cache_slots(p, p.seqlen_k))
        moved, peak = found.operand_bytes, found.peak_bytes
        return replace(
            found,
            operand_bytes=None if moved is None else moved + 2 * (copied + written),
            peak_bytes=None if peak is None else peak + copied,
        )

    return of_step
