"""A model and its config in one safetensors file, written and read back with any implementation."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import Implementation
from attnbench.contract.masks import Mask

from .builder import build_model
from .config import TransformerConfig
from .rope import RopeScaling
from .state_dicts import load_weights, read_safetensors
from .transformer import Transformer

_CONFIG, _IMPLEMENTATION = "attnbench.config", "attnbench.implementation"


def save_model(model: Transformer, path: str | Path) -> None:
    """Write a model to a safetensors file: each weight once, the config as JSON beside them."""
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach().contiguous()
    metadata = {_CONFIG: json.dumps(_plain(model.config)), _IMPLEMENTATION: model.implementation}
    save_file(tensors, path, metadata)


def load_model(
    path: str | Path,
    implementation: str | Implementation = "naive",
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    options: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Any:
    """Read what ``save_model`` wrote, with any ``implementation`` in every layer.

    ``dtype`` is that of the file unless given; ``options`` and ``overrides`` are those of ``build_model``.
    What another implementation had learned for itself is left behind.

    Raises:
        UsageError: no such file, a pickle, a file without a config, weights that do not fit, and what
            ``build_model`` refuses.
    """
    metadata, tensors = read_safetensors(path)
    if _CONFIG not in metadata:
        raise UsageError(
            f"{path}: holds weights without a config of attnbench; "
            "attnbench.model.convert.from_huggingface reads folders with a config.json"
        )
    config = _config(metadata[_CONFIG], path, overrides)
    core = get_implementation(implementation) if isinstance(implementation, str) else implementation
    if core.name != metadata.get(_IMPLEMENTATION):
        tensors = {key: tensor for key, tensor in tensors.items() if "core" not in key.split(".")}
    if dtype is None:
        dtype = next((tensor.dtype for tensor in tensors.values()), torch.float32)
    model = build_model(config, core, dtype=dtype, device=device, options=options)
    load_weights(model, tensors)
    return model


def _plain(config: TransformerConfig) -> dict[str, Any]:
    """The fields of a config as JSON can hold them; masks and scalings as their own tables."""
    fields = {item.name: getattr(config, item.name) for item in dataclasses.fields(config)}
    return {
        name: value.to_dict() if isinstance(value, Mask | RopeScaling) else value
        for name, value in fields.items()
    }


def _config(text: str, path: str | Path, overrides: Mapping[str, Any]) -> TransformerConfig:
    try:
        fields = json.loads(text)
        config = TransformerConfig(**fields) if isinstance(fields, dict) else None
    except (json.JSONDecodeError, TypeError, UsageError) as error:
        raise UsageError(f"{path}: its config cannot be read: {error}") from None
    if config is None:
        raise UsageError(f"{path}: its config is no table of fields: {text[:80]}")
    config = config.replace(**overrides)
    cross = config.cross_implementation
    if cross is not None and cross != overrides.get("cross_implementation") and not _is_plain_name(cross):
        # It would be imported, and weights must not choose what code runs.
        raise UsageError(
            f"{path}: cross_implementation {cross!r} names code; pass it yourself to have it run"
        )
    return config


def _is_plain_name(name: str) -> bool:
    return name.replace("-", "_").isidentifier()
