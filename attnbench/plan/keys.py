"""What a suite file may say: its tables as frozen structs that forbid unknown keys. One value or a list (an axis) for each key."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .case import CacheState, Dtype, Inputs, Level, Mode
from .settings import MeasureSettings

Size = Annotated[int, Meta(ge=0)]
Table = dict[str, Any]
Lengths = Annotated[
    int | str | list[int | str] | UnsetType,
    Meta(description="a length such as 1024 or '4k' (k = 1024), or a list of them"),
]
Whole = Annotated[Size | list[Size] | UnsetType, Meta(description="a whole number, or a list of them")]
PerRow = Annotated[
    int | list[int | list[int]] | UnsetType,
    Meta(description="one whole number per batch row as a list; a list of such lists is an axis"),
]


class CaseKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of ``[defaults]`` and of a ``[[sweep]]``; every list is an axis, a sweep is their product."""

    level: Annotated[Level | list[Level] | UnsetType, Meta(description="attention, block or model")] = UNSET
    preset: Annotated[
        str | list[str] | UnsetType, Meta(description="a Transformer by name, for the levels block and model")
    ] = UNSET
    architecture: Annotated[
        str | list[str] | UnsetType, Meta(description="overrides the preset's architecture")
    ] = UNSET
    inputs: Annotated[
        Inputs | list[Inputs] | UnsetType, Meta(description="random, or text (real text, level model only)")
    ] = UNSET
    device: Annotated[str | list[str] | UnsetType, Meta(description="auto (the default), cpu or cuda")] = (
        UNSET
    )
    dtype: Annotated[
        Dtype | list[Dtype] | UnsetType, Meta(description="float64, float32, float16 or bfloat16")
    ] = UNSET
    compile: Annotated[bool | list[bool] | UnsetType, Meta(description="true goes through torch.compile")] = (
        UNSET
    )
    threads: Annotated[
        Size | list[Size] | UnsetType, Meta(description="CPU threads; the harness chooses by default")
    ] = UNSET
    cache: Annotated[
        CacheState | list[CacheState] | UnsetType,
        Meta(description="cold or warm: whether the cache is flushed before a sample"),
    ] = UNSET
    mode: Annotated[Mode | list[Mode] | UnsetType, Meta(description="fwd, bwd, fwd_bwd or decode")] = UNSET
    mask: Annotated[
        str | Table | list[str | Table] | UnsetType,
        Meta(
            description='a name such as "causal", or a table such as { name = "sliding-window", window_size = 256 }'
        ),
    ] = UNSET
    scale: Annotated[
        float | list[float] | UnsetType, Meta(description="a finite number; by default head_dim ** -0.5")
    ] = UNSET
    num_heads: Whole = UNSET
    hidden: Annotated[
        Size | list[Size] | UnsetType, Meta(description="num_heads * head_dim, in place of num_heads")
    ] = UNSET
    num_kv_heads: Whole = UNSET
    head_dim: Whole = UNSET
    head_dim_v: Whole = UNSET
    batch: Whole = UNSET
    tokens: Annotated[
        int | str | list[int | str] | UnsetType,
        Meta(description="batch * seqlen, in place of batch (which is at least 1)"),
    ] = UNSET
    key_lengths: PerRow = UNSET
    query_start: PerRow = UNSET
    seqlen: Lengths = UNSET
    seqlen_q: Lengths = UNSET
    seqlen_k: Lengths = UNSET
    implementation: Annotated[
        str | Table | list[str | Table] | UnsetType,
        Meta(
            description='a name, "./file.py", "package.module:ATTRIBUTE", or a table { name = …, option = … }'
        ),
    ] = UNSET


class SuiteFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A suite file: a name, a description, defaults, sweeps, and how to measure."""

    name: Annotated[str, Meta(min_length=1, description="how people call it")]
    description: Annotated[str, Meta(description="one line")]
    defaults: CaseKeys = CaseKeys()
    sweep: Annotated[list[CaseKeys], Meta(min_length=1)]
    measure: MeasureSettings = MeasureSettings()
