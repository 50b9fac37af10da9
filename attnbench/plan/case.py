"""One case: every key of a suite, resolved to plain data. In: the keys. Out: a stable id and the `Problem`.

A case crosses process borders and is written into each record: it holds numbers, strings and tables alone.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import msgspec

from attnbench.contract.errors import UsageError
from attnbench.contract.ids import quoted, value_text
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow, mask_from
from attnbench.contract.problem import Problem

if TYPE_CHECKING:
    from attnbench.model.config import TransformerConfig

Level = Literal["attention", "block", "model"]
Mode = Literal["fwd", "bwd", "fwd_bwd", "decode"]
Dtype = Literal["float64", "float32", "float16", "bfloat16"]
Inputs = Literal["normal", "outlier", "large-logits", "long-tail", "constant", "text"]
CacheState = Literal["cold", "warm"]
Option = bool | int | float | str

LEVELS: tuple[str, ...] = get_args(Level)
INPUTS_ONLY_AT: dict[str, Level] = {
    **dict.fromkeys(("outlier", "large-logits", "long-tail", "constant"), "attention"),
    "text": "model",
}
"""Inputs that mean something at one level alone."""
NOT_GIVEN = -1
ATTENTION_HEADS, ATTENTION_HEAD_DIM = 8, 64
PRESET_DIMS = ("num_heads", "num_kv_heads", "head_dim", "head_dim_v")


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measurement to make. ``-1`` is "not given" and is replaced when the case is made.

    At level ``attention``, ``num_heads`` and ``head_dim`` default to 8 and 64, ``num_kv_heads`` to
    ``num_heads``, ``head_dim_v`` to ``head_dim``; at levels ``block`` and ``model`` all four come from the
    preset, and so does the mask, which is causal elsewhere. In mode ``decode``, a context of n tokens is
    ``seqlen_q=1, seqlen_k=n``. Of an encoder-decoder ``seqlen_q`` is the target's length and ``seqlen_k`` the
    source's; in mode ``decode`` both its contexts are ``seqlen_k`` long.

    Raises:
        UsageError: a level above ``attention`` without a preset, an unknown preset, or an architecture that
            it cannot have.
    """

    implementation: str
    """A name, ``./file.py``, or ``package.module:ATTRIBUTE``."""
    seqlen_q: int
    seqlen_k: int = NOT_GIVEN
    options: dict[str, Option] = {}
    """Options of the implementation, such as ``chunk_size``."""
    level: Level = "attention"
    mode: Mode = "fwd"
    mask: dict[str, Any] = {}
    """``Mask.to_dict()``: that of the decoder's self-attention, or of an encoder without a decoder."""
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
    """Keys that exist, one number per batch row; of a source and, as far as it goes, its target."""
    query_start: int | tuple[int, ...] | None = None
    preset: str | None = None
    architecture: str | None = None
    """Overrides the preset's architecture."""
    checkpoint: bool = False
    """Whether a model computes its layers again in the backward pass instead of keeping what they made."""
    inputs: Inputs = "normal"
    """``normal``: seeded N(0, 1), at level ``model`` uniform tokens; ``text``: bytes of real text. The others
    are distributions of q, k and v (``measure/inputs.py``)."""
    cache: CacheState = "cold"
    """Whether the last-level cache is flushed before each sample."""
    threads: int | None = None
    """CPU threads; None leaves the choice to the harness."""
    compile: bool = False
    """Whether the callable goes through ``torch.compile``."""

    def __post_init__(self) -> None:
        """Replace what was not given."""
        mask: Mask = Causal()
        if self.level != "attention":
            config = self._preset_config()
            mask = config.self_mask
            self._fill(**{name: getattr(config, name) for name in PRESET_DIMS})
        if not self.mask:
            msgspec.structs.force_setattr(self, "mask", mask.to_dict())
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
            "implementation": ",".join([quoted(self.implementation, ":#"), *_option_parts(self.options)]),
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
            "checkpoint": "true" if self.checkpoint else None,
            "inputs": self.inputs if self.inputs != "normal" else None,
            "cache": self.cache if self.cache != "cold" else None,
            "threads": self.threads,
            "compile": "true" if self.compile else None,
        }
        return {name: f"{name}={value}" for name, value in named.items() if value is not None}

    def overrides(self) -> dict[str, Any]:
        """Return the fields of the preset's config that the case changes; for levels above ``attention``."""
        config = self._preset_config()
        given: dict[str, Any] = {
            "max_seqlen": max(config.max_seqlen, self.seqlen_q, self.seqlen_k),
            "checkpoint_activations": self.checkpoint,
        }
        own = "encoder_mask" if config.architecture == "encoder-only" else "mask"
        given[own] = mask_from(self.mask)
        if config.architecture == "encoder-decoder" and given[own] != config.mask:
            given["encoder_mask"] = _seen_from_both_sides(given[own], config.encoder_mask)
        changed = {name: value for name, value in given.items() if value != getattr(config, name)}
        dims = {name: getattr(self, name) for name in PRESET_DIMS}
        if any(value != getattr(config, name) for name, value in dims.items()):
            changed |= dims  # all of them: what is left out would be derived anew
        return changed if self.architecture is None else {"architecture": self.architecture, **changed}

    def config(self) -> "TransformerConfig":
        """Return the Transformer of a case above level ``attention``."""
        return self._preset_config().replace(**self.overrides())

    def _preset_config(self) -> "TransformerConfig":
        """Return the preset's config in the architecture that the case asks for."""
        from attnbench.model.presets import load_preset, require_trained_form

        if self.preset is None:
            raise UsageError(f"level {self.level!r} needs a preset")
        config = load_preset(self.preset)
        if self.architecture is not None:
            config = config.replace(architecture=self.architecture)
            require_trained_form(self.preset, config)
        return config

    def problem(self) -> Problem:
        """Return the attention that is computed, at levels ``block`` and ``model`` that of each layer over
        its own sequence: the decoder's, or the encoder's where there is no decoder.

        Raises:
            UsageError: an impossible shape, mask, scale, or lengths that do not fit the batch.
        """
        return next(iter(self.problems().values()))

    def problems(self) -> dict[str, Problem]:
        """Return every attention that a call computes, by its place, the one of ``problem`` first.

        At level ``attention`` the place is that; elsewhere ``decoder``, ``encoder`` and ``cross``. A block of
        an encoder-decoder is a layer of its decoder; while that decodes, the source has been read.
        """
        if self.level == "attention":
            return {"attention": self._problem(query_start=self._starts())}
        config = self.config()
        one_sequence = self.mode != "decode" and config.architecture != "encoder-decoder"
        if one_sequence and self.seqlen_q != self.seqlen_k:
            raise UsageError(
                f"seqlen_q, seqlen_k: at level {self.level!r}, {config.architecture} reads one sequence, "
                f"not {self.seqlen_q} and {self.seqlen_k}"
            )
        if config.architecture == "encoder-only":
            return {"encoder": self._problem(scale=config.scale)}
        if config.architecture == "decoder-only":
            return {"decoder": self._problem(scale=config.scale, query_start=self._starts())}
        decoding = self.mode == "decode"
        held = self.seqlen_k if decoding else self.seqlen_q
        lengths = None if self.key_lengths is None else tuple(min(n, held) for n in self.key_lengths)
        own = {"seqlen_k": held, "key_lengths": lengths, "query_start": self._starts()}
        found = {"decoder": self._problem(scale=config.scale, **own)}
        if self.level == "model" and not decoding:
            of_source = {"seqlen_q": self.seqlen_k, "mask": config.encoder_mask}
            found["encoder"] = self._problem(scale=config.scale, **of_source)
        found["cross"] = self._problem(scale=config.scale, mask=Full())
        return found

    def _starts(self) -> int | tuple[int, ...] | None:
        """Return where each row's queries begin; new tokens end their row, so contexts say where."""
        if self.mode != "decode":
            return self.query_start
        contexts = self.key_lengths or (self.seqlen_k,)
        if min(contexts) < self.seqlen_q:
            raise UsageError(
                f"mode 'decode': contexts hold what is new, so at least {self.seqlen_q}, not {min(contexts)}"
            )
        if self.query_start is not None:
            raise UsageError("query_start: in mode 'decode' new tokens stand behind their context")
        return None if self.key_lengths is None else tuple(n - self.seqlen_q for n in self.key_lengths)

    def _problem(self, **given: Any) -> Problem:
        form: dict[str, Any] = {
            "batch": self.batch,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "seqlen_q": self.seqlen_q,
            "seqlen_k": self.seqlen_k,
            "head_dim": self.head_dim,
            "head_dim_v": self.head_dim_v,
            "dtype": self.dtype,
            "device": self.device,
            "mask": mask_from(self.mask),
            "scale": self.scale,
            "mode": self.mode,
            "key_lengths": self.key_lengths,
            "options": self.options,
        }
        return Problem(**(form | given))

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


def _seen_from_both_sides(mask: Mask, otherwise: Mask) -> Mask:
    """Return what an encoder sees beside a decoder of this mask: of a window the same to both sides."""
    return dataclasses.replace(mask, causal=False) if isinstance(mask, SlidingWindow) else otherwise
