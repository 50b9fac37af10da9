"""A model and its config in one safetensors file, written and read back with any implementation."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import Implementation
from attnbench.contract.masks import Mask

from .builder import build_model, find_implementation
from .config import TransformerConfig
from .rope import RopeScaling
from .state_dicts import PICKLED, load_weights, read_safetensors
from .transformer import Transformer
from .weights import is_real

_CONFIG, _IMPLEMENTATION = "attnbench.config", "attnbench.implementation"


def save_model(model: Transformer, path: str | Path) -> None:
    """Write a model to a safetensors file: each weight once, the config as JSON beside them.

    Raises:
        UsageError: no model of ours, one without numbers (on the meta device), or what ``require_target``
            refuses.
    """
    if not isinstance(model, Transformer):
        raise UsageError(f"model: one that build_model made is needed, not {type(model).__name__}")
    if not all(is_real(weight) for weight in model.parameters()):
        raise UsageError("model: its weights are on the meta device or fake, there are no numbers to write")
    require_target(path)
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach().contiguous()
    metadata = {_CONFIG: json.dumps(_plain(model.config)), _IMPLEMENTATION: model.implementation}
    try:
        save_file(tensors, path, metadata)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: cannot be written ({error})") from None


def require_target(path: str | Path) -> None:
    """Refuse where ``save_model`` could not write; for whoever computes first and saves at the end.

    Raises:
        UsageError: a folder, a file in a folder that is missing, or an ending under which ``load_model``
            would take the file for a pickle.
    """
    if not isinstance(path, str | Path):
        raise UsageError(f"path: a file is needed, not {path!r}")
    file = Path(path)
    if file.suffix.lower() in PICKLED:
        raise UsageError(f"{path}: {file.suffix} stands for pickles, this is written as .safetensors")
    if file.is_dir():
        raise UsageError(f"{path}: a folder; a file is needed")
    if not file.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {str(file.parent)!r}")


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
            ``build_model`` refuses; it names the file.
    """
    metadata, tensors = read_safetensors(path)
    if _CONFIG not in metadata:
        raise UsageError(
            f"{path}: holds weights without a config of attnbench; "
            "attnbench.model.convert.from_huggingface reads folders with a config.json"
        )
    config = _config(metadata[_CONFIG], path, overrides)
    core = find_implementation(implementation)
    if core.name != metadata.get(_IMPLEMENTATION):
        tensors = {key: tensor for key, tensor in tensors.items() if "core" not in key.split(".")}
    if dtype is None:
        dtype = next((tensor.dtype for tensor in tensors.values()), torch.float32)
    _require_weights(config, tensors, path)
    try:
        model = build_model(config, core, dtype=dtype, device=device, options=options)
        load_weights(model, tensors)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return model


def _require_weights(config: TransformerConfig, tensors: Mapping[str, Tensor], path: str | Path) -> None:
    """Refuse a config of more weights than the file holds, before memory and time are spent on them."""
    layers = config.num_layers + config.num_encoder_layers
    rows = config.vocab_size + (config.max_seqlen if config.position == "learned" else 0)
    least = config.dim * (rows + 2 * layers * config.ffn_dim)
    held = sum(tensor.numel() for tensor in tensors.values())
    if least > held:
        raise UsageError(f"{path}: its config needs more than {least - 1} weights, and it holds {held}")


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
