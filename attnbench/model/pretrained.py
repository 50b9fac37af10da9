"""Presets that bring trained weights: which overrides those bear, and how they get into a module."""

import dataclasses

from torch import nn

from attnbench.contract.errors import UsageError

from .config import TransformerConfig
from .presets import load_preset, preset_weights
from .state_dicts import load_weights, read_safetensors
from .weights import is_real

EXCHANGEABLE = (
    "mask",
    "max_seqlen",
    "rope_base",
    "rope_scaling",
    "scale",
    "checkpoint_activations",
    "cross_implementation",
)
"""Fields that may differ from what the weights were trained with: no weight has another shape for them."""


def require_trained_form(preset: str, config: TransformerConfig) -> None:
    """Refuse a config that the weights of ``preset`` do not belong to; without such weights, none.

    Raises:
        UsageError: every field that differs and is not among ``EXCHANGEABLE``.
    """
    if preset_weights(preset) is None:
        return
    trained = load_preset(preset)
    changed = [
        f"{field.name} = {getattr(config, field.name)!r} (trained with {getattr(trained, field.name)!r})"
        for field in dataclasses.fields(config)
        if field.name not in EXCHANGEABLE and getattr(config, field.name) != getattr(trained, field.name)
    ]
    if changed:
        raise UsageError(
            f"preset {preset!r} has trained weights, which do not fit {', '.join(changed)}; what may change: "
            f"{', '.join(EXCHANGEABLE)}; a config instead of a name has its weights drawn"
        )


def load_trained(preset: str, module: nn.Module, place: str = "") -> None:
    """Copy the weights of ``preset`` into its model, or into one part of it, such as ``decoder.layers.0.``.

    Parts that an implementation brings of its own stay as they were drawn. Without trained weights, and under
    fake tensors, nothing happens.

    Raises:
        UsageError: weights that do not fit; nothing was loaded.
    """
    file = preset_weights(preset)
    if file is None or not all(is_real(weight) for weight in module.parameters()):
        return
    _, tensors = read_safetensors(file)
    load_weights(
        module,
        {name.removeprefix(place): tensor for name, tensor in tensors.items() if name.startswith(place)},
    )
