"""What a suite file may say, as frozen structs that forbid unknown keys. In: TOML tables. Out: a `SuiteFile`.

A key holds one value or a list of them, an axis. Descriptions appear in errors and in the JSON schema.
"""

from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .case import CacheState, Dtype, Inputs, Level, Mode
from .settings import MeasureSettings

T = TypeVar("T")
Axis: TypeAlias = T | list[T] | UnsetType
Size = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Table = dict[str, Any]

WHOLE = Meta(description="a whole number, or a list of them")
LENGTH = Meta(description="a length such as 1024 or '4k' (k = 1024), or a list of them")
PER_ROW = Meta(description="whole numbers, one per batch row; a list of such lists is an axis")


class CaseKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of ``[defaults]`` and ``[[sweep]]``: a sweep is the product of its lists."""

    level: Annotated[Axis[Level], Meta(description="attention, block or model")] = UNSET
    preset: Annotated[Axis[str], Meta(description="a Transformer by name, at level block or model")] = UNSET
    architecture: Annotated[Axis[str], Meta(description="overrides the preset's architecture")] = UNSET
    checkpoint: Annotated[
        Axis[bool], Meta(description="true or false: layers computed again backward, at level model")
    ] = UNSET
    inputs: Annotated[
        Axis[Inputs],
        Meta(
            description="normal; outlier, large-logits, long-tail or constant, at level attention; "
            "text: real text, at level model"
        ),
    ] = UNSET
    device: Annotated[Axis[str], Meta(description="auto (cuda if there is one), cpu or cuda")] = UNSET
    dtype: Annotated[Axis[Dtype], Meta(description="float64, float32, float16 or bfloat16")] = UNSET
    compile: Annotated[Axis[bool], Meta(description="true or false: go through torch.compile")] = UNSET
    threads: Annotated[
        Axis[Count], Meta(description="CPU threads, 1 or more; the harness's choice without")
    ] = UNSET
    cache: Annotated[Axis[CacheState], Meta(description="cold or warm: the cache before each sample")] = UNSET
    mode: Annotated[Axis[Mode], Meta(description="fwd, bwd, fwd_bwd or decode")] = UNSET
    mask: Annotated[
        str | Table | list[str | Table] | UnsetType,
        Meta(description="a name such as 'causal', or { name = 'sliding-window', window_size = 256 }"),
    ] = UNSET
    scale: Annotated[Axis[float], Meta(description="a finite number; head_dim ** -0.5 without")] = UNSET
    num_heads: Annotated[Axis[Size], WHOLE] = UNSET
    hidden: Annotated[Axis[Size], Meta(description="num_heads * head_dim, in place of num_heads")] = UNSET
    num_kv_heads: Annotated[Axis[Size], WHOLE] = UNSET
    head_dim: Annotated[Axis[Size], WHOLE] = UNSET
    head_dim_v: Annotated[Axis[Size], WHOLE] = UNSET
    batch: Annotated[Axis[Size], WHOLE] = UNSET
    tokens: Annotated[
        Axis[int | str], Meta(description="batch * seqlen, such as '16k', in place of batch (at least 1)")
    ] = UNSET
    key_lengths: Annotated[list[int | list[int]] | UnsetType, PER_ROW] = UNSET
    query_start: Annotated[int | list[int | list[int]] | UnsetType, PER_ROW] = UNSET
    seqlen: Annotated[Axis[int | str], LENGTH] = UNSET
    seqlen_q: Annotated[Axis[int | str], LENGTH] = UNSET
    seqlen_k: Annotated[Axis[int | str], LENGTH] = UNSET
    implementation: Annotated[
        str | Table | list[str | Table] | UnsetType,
        Meta(description="a name, './file.py', 'package.module:ATTRIBUTE', or { name = …, option = … }"),
    ] = UNSET


class SuiteFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A suite file: a name, perhaps a description, defaults, sweeps, and how to measure."""

    name: Annotated[str, Meta(min_length=1, description="text: how people call the suite")]
    description: Annotated[str, Meta(description="text: one line")] = ""
    defaults: Annotated[CaseKeys, Meta(description="a table: keys of every sweep")] = CaseKeys()
    sweep: Annotated[list[CaseKeys], Meta(min_length=1, description="one [[sweep]] table or more")]
    measure: Annotated[MeasureSettings, Meta(description="a table: how to measure")] = MeasureSettings()
