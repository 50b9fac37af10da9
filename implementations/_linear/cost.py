"""What linear attention costs: sums over its pieces. In: a problem. Out: exact integers.

Letters: N = b·G key/value heads, g query heads each, t chunks of C tokens, E columns of a state, w bytes of a
feature.
"""

from collections.abc import Callable, Sequence

from attnbench.contract.cost import Cost, compulsory_bytes, tensor_bytes
from attnbench.contract.problem import Problem
from attnbench.contract.steps import reading
from attnbench.implementations._shared.batch_runs import BatchRun, batch_runs

from .parts import Parts, Piece, Pieces, num_columns, parts_of

PASSES = {"fwd": (1, 0), "decode": (1, 0), "bwd": (0, 1), "fwd_bwd": (1, 1)}
"""Forward and backward passes of a mode."""


def _columns(problem: Problem) -> int:
    """Columns of a state: filled up, but for one that is kept between calls."""
    width = problem.head_dim_v
    return width + 1 if problem.mode == "decode" else num_columns(width)


def _executed(problem: Problem, runs: Sequence[tuple[BatchRun, Parts]]) -> tuple[int, int]:
    """Return ``(FLOPs, exponentials)``.

    Forward: inside chunks ``t·g·C²·(D + E)`` multiply-adds, through the state D·E for every query and key.
    Backward: three such products; the state takes D·E twice for every query and three times for every key.
    """
    p = problem
    width, columns = p.head_dim, _columns(p)
    forward, backward = PASSES[p.mode]
    flops = exponentials = 0
    for run, parts in runs:
        heads = run.batch * p.num_kv_heads
        pairs = sum(times * num_chunks * size**2 for size, num_chunks, times in parts.aligned.kinds())
        inside = heads * p.group_size * pairs
        queries = heads * p.group_size * (parts.aligned.length + parts.tail.length)
        keys = heads * (parts.head.length + parts.aligned.length)
        inside *= width + columns
        state = width * columns
        flops += 2 * forward * (inside + state * (queries + keys))
        flops += 2 * backward * (3 * inside + state * (2 * queries + 3 * keys))
        exponentials += (forward + 2 * backward) * (queries + keys) * width
    return flops, exponentials


def useful_flops(problem: Problem) -> int:
    """FLOPs through the state: ``2·D·(Dv + 1)`` for every query that sees a key and every key that is seen.

    A backward pass has twice as many: a gradient for each operand of the two products.
    """
    p = problem
    forward, backward = PASSES[p.mode]
    tokens = p.queries_seeing() + p.keys_seen()
    return 2 * (forward + 2 * backward) * p.head_dim * (p.head_dim_v + 1) * tokens


class _Chain:
    """Operand bytes and buffers of the forward chain on one batch run, which starts from no state or, in
    decoding, from one that is there.
    """

    def __init__(self, problem: Problem, run: BatchRun, parts: Parts) -> None:
        p = problem
        self.size, self.w = p.dtype_bytes, max(4, p.dtype_bytes)
        self.heads, self.group = run.batch * p.num_kv_heads, p.group_size
        self.d, self.dv, self.e = p.head_dim, p.head_dim_v, _columns(p)
        self.state = self.heads * self.d * self.e * self.w
        self.made = 0 if p.mode == "decode" else self.state
        self.moved = self.made + self.heads * self.group * parts.empty * (self.dv * self.size + self.w)
        self.buffers: dict[str, int] = {}
        self.flags = 0
        self._each(parts.head, self._head)
        self._each(parts.aligned, self._aligned)
        self._each(parts.tail, self._tail)

    @property
    def peak(self) -> int:
        """Bytes of a state of its own and all buffers, and of the flags that mark empty rows."""
        return self.made + sum(self.buffers.values()) + self.flags

    def _each(self, pieces: Pieces, move: Callable[[Piece], None]) -> None:
        """Count all pieces, one of each kind."""
        for size, num_chunks, times in pieces.kinds():
            before = self.moved
            move(Piece(0, size, num_chunks))
            self.moved = before + times * (self.moved - before)

    def _head(self, piece: Piece) -> None:
        self._keys(piece)
        n = self.heads * piece.size
        self.moved += 2 * self.state + n * (self.d + self.e) * self.w

    def _tail(self, piece: Piece) -> None:
        n = self._queries(piece)
        self.moved += n * (self.d + self.e) * self.w + self.state
        self._divide(n)

    def _buffer(self, name: str, elements: int) -> None:
        self.buffers[name] = max(self.buffers.get(name, 0), elements * self.w)

    def _feature(self, name: str, elements: int) -> None:
        """A clamp and a multiple of x (of wider copies of 16 bits); in place a clamp, exp2, an addition."""
        self._buffer("product", elements)
        self._buffer(name, elements)
        self.moved += elements * (2 * self.size + (9 if self.size == self.w else 13) * self.w)

    def _keys(self, piece: Piece) -> int:
        n = self.heads * piece.num_chunks * piece.size
        self._feature("keys", n * self.d)
        self._buffer("values", n * self.e)
        self.moved += n * self.dv * self.size + n * self.e * self.w
        return n

    def _queries(self, piece: Piece) -> int:
        n = self.heads * self.group * piece.num_chunks * piece.size
        self._feature("queries", n * self.d)
        self._buffer("product", n * self.e)
        return n

    def _aligned(self, piece: Piece) -> None:
        """``a bᵀ``, its triangle, ``(a bᵀ) c``; chunk by chunk ``+ a S`` and ``S + bᵀ c``."""
        queries, keys = self._queries(piece), self._keys(piece)
        scores, states = queries * piece.size, piece.num_chunks * self.state
        self._buffer("scores", scores)
        self.moved += (queries * self.d + keys * self.d + scores + 2 * scores) * self.w
        self.moved += (scores + keys * self.e + queries * self.e) * self.w
        self.moved += queries * (2 * self.e + self.d) * self.w + states
        self.moved += keys * (self.d + self.e) * self.w + 2 * states
        self._divide(queries)

    def _divide(self, rows: int) -> None:
        """Compare, fill, divide, copy the denominator."""
        self.flags = max(self.flags, rows)
        self.moved += rows * (self.w + 1) + rows * (2 * self.w + 1)
        self.moved += rows * ((self.dv + 1) * self.w + self.dv * self.size) + 2 * rows * self.w


def _backward_peak(problem: Problem, run: BatchRun, parts: Parts) -> int:
    """Return the peak of the backward chain beside inputs and upstream gradient.

    Out, denominators, gradients, a state, and buffers, of which ``product`` holds either side's rows.
    """
    p, w, size = problem, max(4, problem.dtype_bytes), tensor_bytes(problem)
    heads, d, dv, e = run.batch * p.num_kv_heads, p.head_dim, p.head_dim_v, _columns(p)
    elements: dict[str, int] = {}

    def hold(**sizes: int) -> None:
        elements.update({name: max(elements.get(name, 0), size) for name, size in sizes.items()})

    for piece in (*parts.aligned, *parts.tail):
        rows = heads * p.group_size * piece.num_chunks * piece.size
        hold(product=rows * d, queries=rows * d, upstream=rows * e, weighted=rows * dv)
    for piece in (*parts.head, *parts.aligned):
        rows = heads * piece.num_chunks * piece.size
        hold(product=rows * max(d, e), keys=rows * d, values=rows * e, db=rows * d)
    for piece in parts.aligned:
        hold(scores=heads * p.group_size * piece.num_chunks * piece.size**2)
    total = p.batch * p.num_heads * p.seqlen_q * w
    kept = size["out"] + total + size["q"] + size["k"] + size["v"]
    return kept + (heads * d * e + sum(elements.values())) * w


def state_bytes(problem: Problem) -> int:
    """Bytes of the sums that stand for all tokens so far: ``B·G·D·(Dv + 1)`` numbers."""
    p = problem
    return p.batch * p.num_kv_heads * p.head_dim * (p.head_dim_v + 1) * max(4, p.dtype_bytes)


def saved_bytes(problem: Problem) -> int | None:
    """Return what a forward pass keeps for its backward: q, k, v, out and the denominators."""
    p, size = problem, tensor_bytes(problem)
    denominators = p.batch * p.num_heads * p.seqlen_q * max(4, p.dtype_bytes)
    return size["q"] + size["k"] + size["v"] + size["out"] + denominators if p.needs_gradients else None


def after_context(problem: Problem) -> Problem:
    """What a step of decoding computes: the new tokens alone, whatever the context; without keys it reads."""
    p = problem
    return p.replace(seqlen_k=p.seqlen_q, key_lengths=None, query_start=None) if p.seqlen_k else reading(p)


def chunks_cost(problem: Problem) -> Cost:
    """Exact counts of the PyTorch path; operand bytes of a forward call, and the peak where no buffer has to
    grow on the way.

    In mode ``decode`` a step with the state, which is read and written and independent of the context;
    without keys it is only read, by every query.
    Operand bytes are those without gradients: a backward pass has them in no closed form. Buffers grow where
    a piece is larger than one before it, which takes queries or keys both inside and outside of the aligned
    part.
    """
    decoding = problem.mode == "decode"
    reads = decoding and problem.seqlen_k == 0
    p = after_context(problem) if decoding else problem
    runs = [(run, parts_of(p, run)) for run in batch_runs(p)]
    flops, exponentials = _executed(p, runs)
    peak_bytes = None
    chains = [_Chain(p, run, parts) for run, parts in runs]
    operand_bytes = None if p.needs_gradients else sum(chain.moved for chain in chains)
    if len(runs) < 2 and all(not x.aligned or not (x.head or x.tail) for _, x in runs):
        total = p.batch * p.num_heads * p.seqlen_q * max(4, p.dtype_bytes)
        peak_bytes = tensor_bytes(p)["out"] + total + sum(chain.peak for chain in chains)
        if p.needs_gradients:
            peak_bytes = max([peak_bytes, *(_backward_peak(p, run, parts) for run, parts in runs)])
    forward, backward = PASSES[p.mode]
    factor = 2 * (forward + 2 * backward)
    tokens = "H*n" if reads else "(H + G)*n" if decoding else "(H*n + G*m)"
    compulsory = compulsory_bytes(p)
    if reads:
        compulsory = tensor_bytes(p)["q"] + tensor_bytes(p)["out"] + state_bytes(p)
    elif decoding:
        compulsory += 2 * state_bytes(p)
    return Cost(
        flops=flops if reads else useful_flops(p),
        executed_flops=flops,
        exponentials=exponentials,
        compulsory_bytes=compulsory,
        operand_bytes=operand_bytes,
        peak_bytes=peak_bytes,
        saved_bytes=saved_bytes(p),
        leading={
            "flops": f"{factor}*B*{tokens}*d*e",
            "exponentials": f"{forward + 2 * backward}*B*{tokens}*d",
            "peak_bytes": f"{p.dtype_bytes}*B*H*n*e",
        },
    )
