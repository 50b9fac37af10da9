"""Presets that bring trained weights: how these get into a module."""

from torch import nn

from .presets import preset_weights
from .state_dicts import load_weights, read_safetensors
from .weights import is_real


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
