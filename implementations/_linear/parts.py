"""How queries and keys of linear attention meet, piece by piece. In: a problem. Out: integers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem
from attnbench.implementations._shared.batch_runs import BatchRun

CHUNK_SIZE = {"cpu": 32, "cuda": 64}
"""Tokens that meet in a masked matmul; between chunks they meet through the state."""
TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 1 << 18}
"""Tokens, over all heads, that one operation covers: what stays in a cache, or fills a GPU."""


def num_columns(head_dim_v: int) -> int:
    """Columns of ``[v, 1]`` filled up with zeros: on CPUs matmuls of 65 columns take longer than of 72."""
    return -(-(head_dim_v + 1) // 8) * 8


class Piece(NamedTuple):
    """``num_chunks`` chunks of ``size`` tokens, from token ``first`` on."""

    first: int
    size: int
    num_chunks: int


@dataclass(frozen=True)
class Pieces:
    """``length`` tokens from ``first`` on, in chunks of ``chunk_size``, and these into pieces of at most
    ``at_once``; a shorter last chunk is a piece of its own.
    """

    first: int
    length: int
    chunk_size: int
    at_once: int

    def __iter__(self) -> Iterator[Piece]:
        """Go through the pieces from the first token to the last."""
        first = self.first
        for size, num_chunks, times in self.kinds():
            for _ in range(times):
                yield Piece(first, size, num_chunks)
                first += size * num_chunks

    def __reversed__(self) -> Iterator[Piece]:
        """Go through them from the last token to the first."""
        return reversed(list(self))

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self.length > 0

    def kinds(self) -> Iterator[tuple[int, int, int]]:
        """Yield ``(size, chunks, pieces)`` of each kind of piece, in order: long sequences have thousands of
        pieces, of three kinds.
        """
        whole, rest = divmod(self.length, self.chunk_size)
        times, fewer = divmod(whole, self.at_once)
        if times:
            yield self.chunk_size, self.at_once, times
        if fewer:
            yield self.chunk_size, fewer, 1
        if rest:
            yield rest, 1, 1


class Parts(NamedTuple):
    """The parts of one batch run, in pieces.

    The first ``empty`` queries see nothing. The first ``head`` keys are seen by all other queries. Then as
    many ``aligned`` queries and keys stand side by side. The ``tail`` queries after them see every key.
    Pieces count aligned and tail queries from ``empty`` on, aligned keys from ``num_head`` on.
    """

    empty: int
    num_head: int
    head: Pieces
    aligned: Pieces
    tail: Pieces


def parts_of(problem: Problem, run: BatchRun) -> Parts:
    """Return the parts under a causal or a full mask."""
    p = problem
    empty, head, aligned = 0, run.num_keys, 0
    if isinstance(p.mask, Causal):
        empty = min(max(0, -run.query_start), p.seqlen_q)
        head = min(max(0, run.query_start), run.num_keys)
        aligned = min(p.seqlen_q - empty, run.num_keys - head)
        if aligned == 1:  # one more key that all later queries see: no chunk for a single pair
            head, aligned = head + 1, 0
    device = "cpu" if p.device == "cpu" else "cuda"
    chunk_size = p.option("chunk_size") or CHUNK_SIZE[device]
    tokens = TOKENS_AT_ONCE[device] // (run.batch * p.num_kv_heads)
    apart = max(chunk_size, tokens)
    return Parts(
        empty,
        head,
        Pieces(0, head, apart, 1),
        Pieces(0, aligned, chunk_size, max(1, tokens // chunk_size)),
        Pieces(aligned, p.seqlen_q - empty - aligned, apart, 1),
    )
