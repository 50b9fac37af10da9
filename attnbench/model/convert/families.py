"""What a family of models is to the converter, and what the families share: names mapped, settings read."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from attnbench.contract.errors import UsageError
from attnbench.model.config import Activation, Head, TransformerConfig
from attnbench.model.state_dicts import equal

from .sources import Settings

Tensors = Mapping[str, Tensor]

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Family:
    """One ``model_type``: its classes with the head of each, and how settings and weights are carried over.

    ``weights`` gives a state dict by our names; what it does not know keeps its own, and is refused as extra.
    """

    model_type: str
    classes: Mapping[str, Head]
    config: Callable[[Settings, Head], TransformerConfig]
    weights: Callable[[Tensors, TransformerConfig], dict[str, Tensor]]


def renamed(tensors: Tensors, rules: Mapping[str, str], *, prefix: str, ignored: str) -> dict[str, Tensor]:
    """Tensors by our names.

    A rule maps the path of a module, with ``#`` for the number of the layer, to ours. ``prefix`` is dropped
    where it stands, keys that match the expression ``ignored`` are left out, and keys without a rule stay.
    """
    found = {}
    for key, tensor in tensors.items():
        name = key.removeprefix(prefix)
        if re.fullmatch(ignored, name):
            continue
        path, _, leaf = name.rpartition(".")
        layer = next((part for part in path.split(".") if part.isdecimal()), "")
        ours = rules.get(".".join("#" if part.isdecimal() else part for part in path.split(".")))
        found[key if ours is None else f"{ours.replace('#', layer)}.{leaf}"] = tensor
    return found


def without_tied(weights: dict[str, Tensor], name: str, table: str) -> dict[str, Tensor]:
    """Drop the head's weight ``name`` where it is the token ``table``.

    Raises:
        UsageError: both are there and differ.
    """
    if name in weights and table in weights and not equal(weights[name], weights[table]):
        raise UsageError(
            f"tie_word_embeddings: the weights of the head are not those of {table}; "
            "pass tied_embeddings=False to keep both"
        )
    return {key: tensor for key, tensor in weights.items() if key != name}


def activation(settings: Settings, name: str, default: str) -> Activation:
    """The activation that a setting names.

    Raises:
        UsageError: one that is not built here.
    """
    return settings.choose(name, default, _ACTIVATIONS)
