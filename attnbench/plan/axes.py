"""A sweep becomes cases. In: the tables of a suite. Out: the product of their axes, the last the fastest."""

import itertools
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import mask_from

from .case import ATTENTION_HEAD_DIM, INPUTS_ONLY_AT, Case
from .keys import CaseKeys
from .lengths import parse_length

Axes = dict[str, list[Any]]

# A key and those it stands in place of: what a sweep states outranks a rival in [defaults].
RIVALS = {"seqlen": ("seqlen_q", "seqlen_k"), "tokens": ("batch",), "hidden": ("num_heads",)}
ATTENTION_ONLY = ("num_heads", "hidden", "num_kv_heads", "head_dim", "head_dim_v", "scale", "query_start")
ABOVE_ATTENTION_ONLY = ("preset", "architecture", "checkpoint")
PER_ROW = ("key_lengths", "query_start")
TABLES = ("mask", "implementation")
THREADS_PER_CORE = 4
"""More threads than this are a mistake, and many more end the process."""


@dataclass(frozen=True)
class NamedOptions:
    """An implementation and its options, as a sweep asks for it."""

    name: str
    options: Mapping[str, Any]


def axes_of(keys: CaseKeys) -> Axes:
    """Return the values of every key that a table gives.

    Raises:
        UsageError: an empty list, two keys that exclude each other, or a table without a name.
    """
    given = {key: getattr(keys, key) for key in keys.__struct_fields__}
    axes = {key: _values(key, value) for key, value in given.items() if value is not msgspec.UNSET}
    for key, others in RIVALS.items():
        for other in others:
            if key in axes and other in axes:
                raise UsageError(f"{key!r} and {other!r} exclude each other; give one of them")
    return axes


def with_defaults(stated: Axes, defaults: Axes) -> Axes:
    """Return a sweep's own axes, else the defaults' unless a rival of its own stands in their place."""
    replaced = {other for key, others in RIVALS.items() if key in stated for other in others}
    replaced |= {key for key, others in RIVALS.items() if any(other in stated for other in others)}
    return {key: values for key, values in defaults.items() if key not in replaced} | stated


def _values(key: str, value: Any) -> list[Any]:
    """Return the values of a key. Where a value is one number per batch row, a flat list is one value."""
    if key in PER_ROW and isinstance(value, list):
        rows = value if all(isinstance(row, list) for row in value) else [value]
        if any(isinstance(item, list) for row in rows for item in row):
            raise UsageError(f"{key} is a list of whole numbers, or a list of such lists")
        values: list[Any] = [tuple(row) for row in rows]
    else:
        values = list(value) if isinstance(value, list) else [value]
    if not values:
        raise UsageError(f"{key} is an empty list; an axis needs at least one value")
    return [item for entry in values for item in _expanded(key, entry)] if key in TABLES else values


def _expanded(key: str, entry: str | dict[str, Any]) -> Iterator[Any]:
    """Yield the tables that an entry stands for: a list inside a table is an axis too."""
    table = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(table.get("name"), str):
        raise UsageError(f"{key}: a table without a name; expected {{ name = …, … }}")
    choices = {name: value if isinstance(value, list) else [value] for name, value in table.items()}
    for values in itertools.product(*choices.values()):
        plain = dict(zip(choices, values, strict=True))
        for name, value in plain.items():
            if not isinstance(value, bool | int | float | str):
                raise UsageError(f"{key}: {name} is {value!r}; expected a number, a string, true or false")
        yield mask_from(plain) if key == "mask" else NamedOptions(plain.pop("name"), plain)


def cases_of(axes: Axes, stated: Collection[str]) -> Iterator[Case]:
    """Yield the product of the axes, in the order of `CaseKeys`. ``stated``: the sweep's own keys.

    Raises:
        UsageError: a key without meaning at the level, something missing, or an impossible shape.
    """
    levels = axes.get("level", ["attention"])
    for level in levels:
        foreign = ABOVE_ATTENTION_ONLY if level == "attention" else ATTENTION_ONLY
        if len(levels) == 1:
            _refuse_foreign(level, [key for key in foreign if key in stated])
        order = [key for key in CaseKeys.__struct_fields__ if key in axes and key not in (*foreign, "level")]
        for values in itertools.product(*(axes[key] for key in order)):
            yield _case(level, dict(zip(order, values, strict=True)))


def _refuse_foreign(level: str, keys: list[str]) -> None:
    """Refuse keys that a sweep states itself and that mean nothing at its level; defaults may hold them."""
    where = "block and model" if level == "attention" else "attention: the preset says it elsewhere"
    for key in keys:
        raise UsageError(f"{key!r} has no meaning at level {level!r}, only at {where}")


def _case(level: Any, keys: dict[str, Any]) -> Case:
    """Make the case of one point of a sweep and check that its problem is possible."""
    if "implementation" not in keys:
        raise UsageError("the key 'implementation' is missing")
    inputs = keys.get("inputs", "normal")
    if (only_at := INPUTS_ONLY_AT.get(inputs, level)) != level:
        raise UsageError(f"inputs = {inputs!r} has no meaning at level {level!r}, only at {only_at}")
    if keys.get("checkpoint"):
        _refuse_pointless_checkpoint(level, keys.get("mode", "fwd"))
    implementation: NamedOptions = keys.pop("implementation")
    seqlen_q, seqlen_k = _lengths(keys)
    if "tokens" in keys:
        keys["batch"] = max(1, parse_length(keys.pop("tokens")) // max(1, seqlen_k))
    if "hidden" in keys:
        keys["num_heads"] = _heads(keys.pop("hidden"), keys.get("head_dim", ATTENTION_HEAD_DIM))
    if "mask" in keys:
        keys["mask"] = keys["mask"].to_dict()
    case = Case(
        level=level,
        implementation=implementation.name,
        options=dict(implementation.options),
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        **keys,
    )
    case.problem()
    if case.threads is not None:
        _refuse_many_threads(case.threads)
    return case


def _refuse_many_threads(threads: int) -> None:
    most = THREADS_PER_CORE * (os.cpu_count() or 1)
    if threads > most:
        raise UsageError(f"threads = {threads}: at most {most} here, {THREADS_PER_CORE} for each core")


def _refuse_pointless_checkpoint(level: Any, mode: str) -> None:
    """Refuse to compute again what no backward pass needs, or where there are no layers to do without."""
    if level != "model":
        raise UsageError(f"checkpoint = true has no meaning at level {level!r}, only at model")
    if mode not in ("bwd", "fwd_bwd"):
        raise UsageError(f"checkpoint = true has no meaning in mode {mode!r}, only in bwd and fwd_bwd")


def _lengths(keys: dict[str, Any]) -> tuple[int, int]:
    """Take the lengths out of ``keys``. In mode decode, ``seqlen`` is the context that one query sees."""
    if "seqlen" in keys:
        seqlen = parse_length(keys.pop("seqlen"))
        return (1 if keys.get("mode") == "decode" else seqlen), seqlen
    for key in ("seqlen_q", "seqlen_k"):
        if key not in keys:
            raise UsageError(f"the key {key!r} is missing; give 'seqlen', or 'seqlen_q' and 'seqlen_k'")
    return parse_length(keys.pop("seqlen_q")), parse_length(keys.pop("seqlen_k"))


def _heads(hidden: int, head_dim: int) -> int:
    if not head_dim or hidden % head_dim:
        raise UsageError(f"hidden = {hidden} is not a multiple of head_dim = {head_dim}")
    return hidden // head_dim
