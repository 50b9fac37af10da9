"""How flash decoding shares out its keys. In: a problem. Out: whether it decodes, splits, programs, bytes.

Letters: B batch, H query heads, G key/value heads, D and Dv widths. Exact integers; nothing runs.
"""

from collections.abc import Sequence
from typing import NamedTuple

from attnbench.contract.cost import LSE_BYTES
from attnbench.contract.masks import Band
from attnbench.contract.problem import Problem
from attnbench.contract.sampling import Probe, ProgramSample, Progression, RowRange

from .programs import BOUNDS_BYTES, effective_band, is_empty, query_tiles, row_kinds
from .tiles import SPLITS, Tile, current_target, nearest_target, padded_width, tile_for, tile_table

MOST_QUERIES = 16
"""Of a head, beside which reading the keys is all the work."""
LONG = 512
"""Keys from which on a pass that is no step of decoding is split."""
MERGED_COLUMNS = 64
"""Columns of out that a program of the merge computes."""
PART_BYTES = 4
"""Of a partial result, float32."""
PART_STATISTICS_BYTES = 8
"""Of a row and split: its largest score and its sum, float32."""


def decodes(problem: Problem) -> bool:
    """Whether the decoding kernels take the problem: few queries, no gradients, and a step or many keys."""
    p = problem
    return p.seqlen_q <= MOST_QUERIES and not p.needs_gradients and (p.mode == "decode" or p.seqlen_k >= LONG)


class Span(NamedTuple):
    """Keys ``[lo, hi)`` that some query of a batch row sees, read in blocks of the grid."""

    lo: int
    hi: int

    def blocks(self, block_k: int) -> int:
        """Count the blocks."""
        return -(-self.hi // block_k) - self.lo // block_k if self.hi > self.lo else 0


def key_span(band: Band, seqlen_q: int, start: int, limit: int) -> Span:
    """Return the keys that a batch row reads: its first query stands at ``start``, ``limit`` keys exist."""
    tiles = query_tiles(band, seqlen_q, start, limit, seqlen_q)
    return Span(int(tiles.lo[0]), int(tiles.hi[0]))


def visited_blocks(
    band: Band, seqlen_q: int, starts: Sequence[int], limits: Sequence[int], block_k: int
) -> int:
    """Count the blocks of keys that are read, of one key/value head of every batch row."""
    return sum(
        len(same) * key_span(band, seqlen_q, *kind).blocks(block_k)
        for kind, same in row_kinds(starts, limits).items()
    )


def num_splits(most_blocks: int, programs: int, target: str) -> int:
    """Return in how many splits keys are read: enough that ``programs`` a split fill the target.

    Each split has as many of the longest row's ``most_blocks`` blocks, the last one what is left. The rule is
    data (``tiles.toml``) and asks no driver, so that a GPU of a kind always adds up in the same order.
    """
    rule = tile_table()["splits"]
    multiprocessors = rule["multiprocessors"]
    wanted = rule["programs_per_multiprocessor"] * multiprocessors[nearest_target(target, multiprocessors)]
    affordable: int = min(rule["most"], most_blocks // rule["least_blocks"], -(-wanted // max(1, programs)))
    each = -(-most_blocks // max(1, affordable))
    return max(1, -(-most_blocks // max(1, each)))


class DecodePrograms:
    """The programs of both kernels for a problem on a target, by default on what is here."""

    def __init__(self, problem: Problem, target: str | None = None) -> None:
        """Take the tile and the splits that the launch would take."""
        p = self.problem = problem
        self.band = effective_band(p)
        self.tile: Tile = tile_for(p, target, "decode")
        self.rows = p.group_size * p.seqlen_q
        """Queries of a key/value head."""
        self.row_tiles = -(-self.rows // self.tile.block_q)
        kinds = {} if is_empty(p) else row_kinds(p.query_starts, p.key_limits)
        self.spans = {kind: key_span(self.band, p.seqlen_q, *kind) for kind in kinds}
        self.kinds = kinds
        most_blocks = max((span.blocks(self.tile.block_k) for span in self.spans.values()), default=0)
        programs = p.batch * p.num_kv_heads * self.row_tiles
        chosen = p.option(SPLITS) if kinds else 1
        self.splits: int = chosen or num_splits(most_blocks, programs, target or current_target(p.device))
        self.is_split = self.splits > 1

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that are launched."""
        return ("decode", "merge") if self.is_split else ("decode",)

    @property
    def all_rows(self) -> int:
        """Query rows of all heads."""
        p = self.problem
        return p.batch * p.num_heads * p.seqlen_q if self.kinds else 0

    def visited(self) -> int:
        """Count the tiles ``block_q × block_k`` that all programs visit."""
        blocks = sum(
            len(same) * self.spans[kind].blocks(self.tile.block_k) for kind, same in self.kinds.items()
        )
        return self.problem.num_kv_heads * self.row_tiles * blocks

    @property
    def merge_programs(self) -> int:
        """Programs of the merge: one a row and block of columns."""
        return self.all_rows * merged_blocks(self.problem.head_dim_v) if self.is_split else 0

    def exponentials(self) -> int:
        """A pair of a tile and a row of it once more; in the merge a split, up to a power of two of them."""
        block_q, block_k = self.tile.block_q, self.tile.block_k
        merged = self.merge_programs * padded_splits(self.splits)
        return self.visited() * block_q * (block_k + 1) + merged

    def _row_bytes(self) -> int:
        """What the first kernel reads and writes of a row in one split."""
        p = self.problem
        if self.is_split:
            written = p.head_dim_v * PART_BYTES + PART_STATISTICS_BYTES
        else:
            written = p.head_dim_v * p.dtype_bytes + LSE_BYTES
        return p.head_dim * p.dtype_bytes + written

    def decode_bytes(self) -> int:
        """Return the bytes that the first kernel asks for: queries once a split, keys once a tile of rows."""
        p = self.problem
        keys = sum(
            len(same) * (self.spans[kind].hi - self.spans[kind].lo) for kind, same in self.kinds.items()
        )
        programs = p.batch * p.num_kv_heads * self.row_tiles * self.splits if self.kinds else 0
        read = p.num_kv_heads * self.row_tiles * keys * (p.head_dim + p.head_dim_v) * p.dtype_bytes
        return programs * BOUNDS_BYTES + read + self.splits * self.all_rows * self._row_bytes()

    def merge_bytes(self) -> int:
        """Return the bytes that the merge asks for."""
        p = self.problem
        if not self.is_split:
            return 0
        row = self.splits * p.head_dim_v * PART_BYTES + p.head_dim_v * p.dtype_bytes + LSE_BYTES
        return self.merge_programs * self.splits * PART_STATISTICS_BYTES + self.all_rows * row

    def requested_bytes(self) -> int:
        """Return the bytes that both kernels ask for."""
        return self.decode_bytes() + self.merge_bytes()

    def sample(self, kernel: str) -> ProgramSample:
        """Return the programs of one key/value head of each kind of batch row: they move what others do."""
        p, pieces, rows = self.problem, [], []
        each = self.row_tiles * self.splits if kernel == "decode" else self.rows * merged_blocks(p.head_dim_v)
        for same in self.kinds.values():
            first = same[0] * p.num_kv_heads * each
            pieces += [
                Progression(1, p.num_kv_heads * len(same), (Probe(0, first + place),))
                for place in range(each)
            ]
            rows += [RowRange(same[0], head, 0, p.seqlen_q) for head in range(p.group_size)]
        return ProgramSample(tuple(pieces), tuple(rows))


def merged_blocks(value_dim: int) -> int:
    """Return how many programs of the merge share a row: at least the one that writes its lse."""
    return max(1, -(-value_dim // merged_columns(value_dim)))


def merged_columns(value_dim: int) -> int:
    """Return the columns of a program of the merge."""
    return min(MERGED_COLUMNS, padded_width(value_dim))


def padded_splits(splits: int) -> int:
    """Return the power of two that holds the splits."""
    return 1 << max(0, splits - 1).bit_length()
