"""One case: every key of a suite, resolved to plain data. In: the keys. Out: a stable id and the `Problem`.

A case crosses process borders and is written into each record: it holds numbers, strings and tables alone.
"""

from typing import Any, Literal, Self, get_args
from urllib.parse import quote

import msgspec

from attnbench.contract.errors import UsageError
from attnbench.contract.ids import quoted, value_text
from attnbench.contract.masks import mask_from
from attnbench.contract.problem import Problem

Level = Literal["attention", "block", "model"]
Mode = Literal["fwd", "bwd", "fwd_bwd", "decode"]
Dtype = Literal["float64", "float32", "float16", "bfloat16"]
Inputs = Literal["normal", "text"]
CacheState = Literal["cold", "warm"]
Option = bool | int | float | str

LEVELS: tuple[str, ...] = get_args(Level)
NOT_GIVEN = -1
ATTENTION_HEADS, ATTENTION_HEAD_DIM = 8, 64


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measurement to make. ``-1`` is "not given" and is replaced when the case is made.

    At level ``attention``, ``num_heads`` and ``head_dim`` default to 8 and 64, ``num_kv_heads`` to
    ``num_heads``, ``head_dim_v`` to ``head_dim``; at levels ``block`` and ``model`` all four come from the
    preset. In mode ``decode``, a context of n tokens is ``seqlen_q=1, seqlen_k=n``.

    Raises:
        UsageError: a level above ``attention`` without a preset, or an unknown preset.
    """

    implementation: str
    """A name, ``./file.py``, or ``package.module:ATTRIBUTE``."""
    seqlen_q: int
    seqlen_k: int = NOT_GIVEN
    options: dict[str, Option] = {}
    """Options of the implementation, such as ``chunk_size``."""
    level: Level = "attention"
    mode: Mode = "fwd"
    mask: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "causal"})
    """``Mask.to_dict()``."""
    batch: int = 1
    num_heads: int = NOT_GIVEN
    num_kv_heads: int = NOT_GIVEN
    head_dim: int = NOT_GIVEN
    head_dim_v: int = NOT_GIVEN
    dtype: Dtype = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    """The kind of device. Which one of several belongs to the run, not to the case."""
    scale: float | None = None
    key_lengths: tuple[int, ...] | None = None
    """Keys that exist, one number per batch row."""
    query_start: int | tuple[int, ...] | None = None
    preset: str | None = None
    architecture: str | None = None
    """Overrides the preset's architecture."""
    inputs: Inputs = "normal"
    """``normal``: seeded N(0, 1), at level ``model`` uniform tokens; ``text``: bytes of real text."""
    cache: CacheState = "cold"
    """Whether the last-level cache is flushed before each sample."""
    threads: int | None = None
    """CPU threads; None leaves the choice to the harness."""
    compile: bool = False
    """Whether the callable goes through ``torch.compile``."""

    def __post_init__(self) -> None:
        """Replace what was not given."""
        if self.level != "attention":
            self._fill(**_preset_dims(self.preset, self.level))
        self._fill(seqlen_k=self.seqlen_q, num_heads=ATTENTION_HEADS, head_dim=ATTENTION_HEAD_DIM)
        self._fill(num_kv_heads=self.num_heads, head_dim_v=self.head_dim)

    def _fill(self, **defaults: int) -> None:
        for name, value in defaults.items():
            if getattr(self, name) == NOT_GIVEN:
                msgspec.structs.force_setattr(self, name, value)

    @property
    def seqlen(self) -> int:
        """The length on the x axis of every plot: ``seqlen_k``."""
        return self.seqlen_k

    @property
    def case_id(self) -> str:
        """A readable, stable, injective name: every key that is not at its default is in it.

        ``level[:preset]/implementation[,option=value…]/mode/mask/lengths/shape/dtype/device[/key=value…]``
        """
        return "/".join(self.id_parts().values())

    def id_parts(self) -> dict[str, str]:
        """Return the parts of the id by what they say; for tables that show what differs."""
        return {
            "level": self.level + (f":{quoted(self.preset)}" if self.preset is not None else ""),
            "implementation": ",".join([quote(self.implementation, safe=":#"), *_option_parts(self.options)]),
            "mode": self.mode,
            "mask": quoted(mask_from(self.mask).slug),
            "seqlen": self._lengths_part(),
            "shape": self._shape_part(),
            "dtype": self.dtype,
            "device": self.device,
            **self._other_parts(),
        }

    def _lengths_part(self) -> str:
        usual_q = 1 if self.mode == "decode" else self.seqlen_k
        return f"n{self.seqlen_k}" if self.seqlen_q == usual_q else f"q{self.seqlen_q}-k{self.seqlen_k}"

    def _shape_part(self) -> str:
        parts = [f"b{self.batch}", f"h{self.num_heads}"]
        if self.num_kv_heads != self.num_heads:
            parts.append(f"g{self.num_kv_heads}")
        parts.append(f"d{self.head_dim}")
        if self.head_dim_v != self.head_dim:
            parts.append(f"v{self.head_dim_v}")
        return "-".join(parts)

    def _other_parts(self) -> dict[str, str]:
        per_row = isinstance(self.query_start, tuple)
        starts = _numbers(self.query_start) if isinstance(self.query_start, tuple) else self.query_start
        named = {
            "scale": None if self.scale is None else repr(float(self.scale)),
            "lengths": None if self.key_lengths is None else _numbers(self.key_lengths),
            "starts" if per_row else "start": starts,
            "architecture": None if self.architecture is None else quoted(self.architecture),
            "inputs": self.inputs if self.inputs != "normal" else None,
            "cache": self.cache if self.cache != "cold" else None,
            "threads": self.threads,
            "compile": "true" if self.compile else None,
        }
        return {name: f"{name}={value}" for name, value in named.items() if value is not None}

    def problem(self) -> Problem:
        """Return the attention that is computed, at levels ``block`` and ``model`` the one of each layer.

        Raises:
            UsageError: an impossible shape, mask, scale, or lengths that do not fit the batch.
        """
        return Problem(
            batch=self.batch,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            seqlen_q=self.seqlen_q,
            seqlen_k=self.seqlen_k,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            dtype=self.dtype,
            device=self.device,
            mask=mask_from(self.mask),
            scale=self.scale,
            mode=self.mode,
            key_lengths=self.key_lengths,
            query_start=self.query_start,
            options=self.options,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return every key as plain data (JSON knows all of it); `from_dict` makes an equal case."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make a case from plain data.

        Raises:
            UsageError: an unknown key or a value of the wrong type.
        """
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"not a case: {error}") from None


def _numbers(values: tuple[int, ...]) -> str:
    return ",".join(str(value) for value in values)


def _option_parts(options: dict[str, Option]) -> list[str]:
    return [f"{quoted(name)}={value_text(options[name])}" for name in sorted(options)]


def _preset_dims(preset: str | None, level: str) -> dict[str, int]:
    """Return the head counts and widths of a preset."""
    from attnbench.model.presets import load_preset

    if preset is None:
        raise UsageError(f"level {level!r} needs a preset")
    config = load_preset(preset)
    return {name: getattr(config, name) for name in ("num_heads", "num_kv_heads", "head_dim", "head_dim_v")}
