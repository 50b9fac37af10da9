"""The problem: one attention computation, described by plain frozen data.

Knows no tensors and no implementation.
"""

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from .errors import UsageError, nearest
from .masks import Causal, Mask, mask_from

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
FEATURES = frozenset(
    {
        *("backward", "decode", "lse", "scale", "value-dim", "grouped-heads"),
        *("cross-lengths", "key-lengths", "query-start"),
        *(f"dtype:{name}" for name in DTYPE_BYTES),
        *("device:cpu", "device:cuda"),
    }
)
"""Everything that ``Problem.needs`` can name, but for masks."""
MODES = ("fwd", "bwd", "fwd_bwd", "decode")
SIZES = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v")
LARGEST = 2**32
"""Of every length, count and width; nothing that runs comes near, and beyond it counts would not be exact."""
LARGEST_SCALE = 1e38
"""Times log2 e it still is a number of float32."""
LARGEST_BATCH = 2**24
"""Of the batch, for which ``query_starts`` and ``key_limits`` hold a number per row."""


def _frozen(value: Any) -> Any:
    """Return plain data as something hashable."""
    if isinstance(value, Mapping):
        return tuple(sorted((key, _frozen(item)) for key, item in value.items()))
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _whole(name: str, value: Any) -> int:
    """Return a whole number as Python's own; numpy's are whole too, truth values and floats are not."""
    if type(value) is int and abs(value) <= LARGEST_BATCH:
        return value
    try:
        if type(value).__name__ in ("bool", "bool_"):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be a whole number, not {value!r}") from None
    most = LARGEST_BATCH if name == "batch" else LARGEST
    if abs(number) > most:
        shown = str(number) if number.bit_length() < 200 else f"a number of {number.bit_length()} bits"
        raise UsageError(f"{name} must be at most {most}, not {shown}")
    return number


def _whole_per_row(name: str, value: Any) -> tuple[int, ...]:
    """Return one whole number per batch row."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        # Tensors and arrays become numbers of Python's own.
        items = list(value.tolist() if hasattr(value, "tolist") else value)
    except TypeError:
        raise UsageError(
            f"{name} must be a sequence of whole numbers, one per batch row, not {value!r}"
        ) from None
    return tuple(_whole(name, item) for item in items)


def _per_row(value: int | tuple[int, ...] | None, default: int, batch: int) -> tuple[int, ...]:
    if value is None:
        return (default,) * batch
    return (value,) * batch if isinstance(value, int) else value


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One attention: ``out = softmax(q kᵀ · scale + mask) v`` or whatever the semantics say, for these
    shapes.

    q ``[batch, num_heads, seqlen_q, head_dim]``, k ``[batch, num_kv_heads, seqlen_k, head_dim]``,
    v ``[batch, num_kv_heads, seqlen_k, head_dim_v]``. Query head ``h`` reads key/value head ``h // (num_heads
    // num_kv_heads)``. Keys stand at 0…seqlen_k-1; the first query of a batch row at ``query_start`` (default
    ``seqlen_k - seqlen_q``: bottom-right).

    Raises:
        UsageError: an impossible shape, dtype, mode, scale, or lengths that do not fit the batch. It is a
            ``ValueError``.
    """

    seqlen_q: int
    seqlen_k: int = -1
    batch: int = 1
    num_heads: int = 8
    num_kv_heads: int = -1
    head_dim: int = 64
    head_dim_v: int = -1
    dtype: str = "float32"
    device: str = "cpu"
    mask: Mask = field(default_factory=Causal)
    scale: float | None = None
    mode: str = "fwd"
    key_lengths: tuple[int, ...] | None = None
    query_start: int | tuple[int, ...] | None = None
    options: Any = ()
    """Options of the implementation, given as a mapping, kept as sorted pairs; read with ``option``."""

    def __post_init__(self) -> None:
        """Fill in what follows from the rest and refuse what cannot be."""
        set_field = object.__setattr__
        for name in SIZES:
            given = getattr(self, name)
            if (number := _whole(name, given)) is not given:
                set_field(self, name, number)
        if self.seqlen_k == -1:
            set_field(self, "seqlen_k", self.seqlen_q)
        if self.num_kv_heads == -1:
            set_field(self, "num_kv_heads", self.num_heads)
        if self.head_dim_v == -1:
            set_field(self, "head_dim_v", self.head_dim)
        set_field(self, "mask", mask_from(self.mask))
        if isinstance(self.options, Mapping):
            set_field(self, "options", _frozen(self.options))
        if self.key_lengths is not None:
            set_field(self, "key_lengths", _whole_per_row("key_lengths", self.key_lengths))
        if self.query_start is not None:
            one_for_all = not hasattr(self.query_start, "__len__")
            read = _whole if one_for_all else _whole_per_row
            set_field(self, "query_start", read("query_start", self.query_start))
        self._check()
        if self.scale is not None:
            set_field(self, "scale", float(self.scale))

    def _check(self) -> None:
        for name in ("batch", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative, not {getattr(self, name)}")
        for name in ("num_heads", "num_kv_heads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise UsageError(
                f"num_heads={self.num_heads} is not divisible by num_kv_heads={self.num_kv_heads}"
            )
        if self.dtype not in DTYPE_BYTES:
            raise UsageError(
                f"unknown dtype {self.dtype!r}{nearest(self.dtype, DTYPE_BYTES)}; "
                f"there are {', '.join(DTYPE_BYTES)}"
            )
        if self.mode not in MODES:
            raise UsageError(
                f"unknown mode {self.mode!r}{nearest(self.mode, MODES)}; there are {', '.join(MODES)}"
            )
        if self.scale is not None and (isinstance(self.scale, bool) or not isinstance(self.scale, Real)):
            raise UsageError(f"scale must be a finite number, not {self.scale!r}")
        if self.scale is not None and not math.isfinite(self.scale):
            raise UsageError(f"scale must be finite, not {self.scale}")
        if self.scale is not None and abs(self.scale) > LARGEST_SCALE:
            raise UsageError(f"scale must be at most {LARGEST_SCALE} either way, not {self.scale}")
        if self.key_lengths is not None:
            if len(self.key_lengths) != self.batch:
                raise UsageError(
                    f"key_lengths has {len(self.key_lengths)} entries for a batch of {self.batch}"
                )
            for length in self.key_lengths:
                if not 0 <= length <= self.seqlen_k:
                    raise UsageError(
                        f"key_lengths must lie within 0 and seqlen_k={self.seqlen_k}, not {length}"
                    )
        if isinstance(self.query_start, tuple) and len(self.query_start) != self.batch:
            raise UsageError(f"query_start has {len(self.query_start)} entries for a batch of {self.batch}")

    def replace(self, **changes: Any) -> "Problem":
        """Return a copy with these fields changed."""
        return replace(self, **changes)

    def option(self, name: str, default: Any = None) -> Any:
        """Return an option of the implementation."""
        return dict(self.options).get(name, default) if self.options else default

    @property
    def softmax_scale(self) -> float:
        """The factor on the logits.

        ``scale``, or ``head_dim ** -0.5`` (1 for width 0, where every logit is 0 anyway).
        """
        if self.scale is not None:
            return float(self.scale)
        return float(self.head_dim**-0.5) if self.head_dim else 1.0

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def query_starts(self) -> tuple[int, ...]:
        """Absolute position of the first query, one per batch row."""
        return _per_row(self.query_start, self.seqlen_k - self.seqlen_q, self.batch)

    @property
    def key_limits(self) -> tuple[int, ...]:
        """Number of keys that exist, one per batch row: ``key_lengths`` or ``seqlen_k``."""
        return _per_row(self.key_lengths, self.seqlen_k, self.batch)

    @property
    def needs_gradients(self) -> bool:
        """Whether the mode runs a backward pass."""
        return self.mode in ("bwd", "fwd_bwd")

    def needs(self) -> frozenset[str]:
        """Return the names of the features that this problem uses.

        An implementation must list every one in ``supports``.
        """
        found = {f"mask:{self.mask.name}", f"dtype:{self.dtype}", f"device:{self.device}"}
        if self.needs_gradients:
            found.add("backward")
        if self.mode == "decode":
            found.add("decode")
        if self.num_kv_heads != self.num_heads:
            found.add("grouped-heads")
        if self.head_dim_v != self.head_dim:
            found.add("value-dim")
        if self.seqlen_q != self.seqlen_k:
            found.add("cross-lengths")
        if self.key_lengths is not None:
            found.add("key-lengths")
        if self.query_start is not None:
            found.add("query-start")
        if self.scale is not None:
            found.add("scale")
        if self.option("return_lse", False):
            found.add("lse")
        return frozenset(found)

    def _rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield ``(query start, key limit, batch row, head, times it counts)``.

        For uniform masks one head of each kind of batch row, for others each head.
        """
        if not self.mask.uniform:
            for b, (start, limit) in enumerate(zip(self.query_starts, self.key_limits, strict=True)):
                for h in range(self.num_heads):
                    yield start, limit, b, h, 1
            return
        for (start, limit), times in self.kinds_of_rows().items():
            yield start, limit, 0, 0, times * self.num_heads

    def kinds_of_rows(self) -> Mapping[tuple[int, int], int]:
        """Return how many batch rows have each query start and key limit."""
        starts, limits = self.query_start, self.key_lengths
        if isinstance(starts, tuple) or limits is not None:
            return Counter(zip(self.query_starts, self.key_limits, strict=True))
        start = self.seqlen_k - self.seqlen_q if starts is None else starts
        return {(start, self.seqlen_k): self.batch}

    def pairs(self) -> int:
        """Count the visible (query, key) pairs over batch and query heads."""
        return sum(
            times * self.mask.pairs(self.seqlen_q, limit, start, b, h)
            for start, limit, b, h, times in self._rows()
        )

    def visited_tiles(self, block_q: int, block_k: int) -> int:
        """Count the tiles with a visible pair over batch and query heads."""
        return sum(
            times * self.mask.tiles(block_q, block_k, self.seqlen_q, limit, start, b, h).visited
            for start, limit, b, h, times in self._rows()
        )

    def keys_seen(self) -> int:
        """Count the (batch row, key/value head, key) slots that at least one query sees."""
        if self.mask.uniform:
            return self.num_kv_heads * sum(
                times * self.mask.num_keys_seen(self.seqlen_q, limit, start)
                for (start, limit), times in self.kinds_of_rows().items()
            )
        total = 0
        for b, (start, limit) in enumerate(zip(self.query_starts, self.key_limits, strict=True)):
            for g in range(self.num_kv_heads):
                heads = range(g * self.group_size, (g + 1) * self.group_size)
                seen = [self.mask.keys_seen(self.seqlen_q, limit, start, b, h) for h in heads]
                total += int(sum(seen[1:], start=seen[0].copy()).astype(bool).sum())
        return total

    def queries_seeing(self) -> int:
        """Count the (batch row, query head, query) rows that see at least one key."""
        return sum(
            times * self.mask.num_queries_seeing(self.seqlen_q, limit, start, b, h)
            for start, limit, b, h, times in self._rows()
        )
