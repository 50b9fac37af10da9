"""A case becomes the text of a suite that holds it alone. In: a case and settings. Out: TOML."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from .axes import ATTENTION_ONLY
from .case import Case
from .settings import MeasureSettings

_ALWAYS = {"implementation", "mask", "seqlen_q", "seqlen_k", "device", "num_heads", "head_dim"}
"""Keys that are written even at their defaults: so a reader sees the shape."""


def suite_text(name: str, case: Case, measure: MeasureSettings) -> str:
    """Return the TOML of a suite of that name whose only case is ``case``, measured as ``measure`` says."""
    lines = [f"name = {_value(name)}", "[[sweep]]"]
    lines += [f"{key} = {_value(value)}" for key, value in _keys(case).items()]
    stated = {
        key: value
        for key, value in msgspec.to_builtins(measure).items()
        if getattr(measure, key) != getattr(MeasureSettings(), key)
    }
    if stated:
        lines += ["[measure]", *(f"{key} = {_value(value)}" for key, value in stated.items())]
    return "\n".join(lines)


def _keys(case: Case) -> dict[str, Any]:
    """Return the keys of a sweep that make this case."""
    plain = case.to_dict()
    named = {"name": plain.pop("implementation"), **plain.pop("options")}
    keys = {"implementation": named if len(named) > 1 else named["name"], **plain}
    keys["mask"] = case.mask if len(case.mask) > 1 else case.mask["name"]
    omitted = () if case.level == "attention" else ATTENTION_ONLY
    usual = {item.name: item.default for item in msgspec.structs.fields(Case)}
    usual |= {"num_kv_heads": case.num_heads, "head_dim_v": case.head_dim}
    return {
        key: value
        for key, value in keys.items()
        if value is not None and key not in omitted and (key in _ALWAYS or value != usual[key])
    }


def _value(value: Any) -> str:
    """Return a value of a suite as TOML: numbers, strings, lists, and tables in one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_value(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):  # TOML's strings are JSON's, which may hold one more control character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
