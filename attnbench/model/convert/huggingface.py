"""Models of Hugging Face to ours: the family is found by its ``model_type``, the head by its class."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnbench.contract.errors import UsageError, nearest
from attnbench.contract.implementation import Implementation
from attnbench.model.builder import build_model
from attnbench.model.state_dicts import load_weights

from .bert import BERT
from .families import Family
from .gpt2 import GPT2
from .llama import LLAMA, QWEN2
from .marian import MARIAN
from .sources import read_source

_FAMILIES: dict[str, Family] = {family.model_type: family for family in (BERT, GPT2, LLAMA, MARIAN, QWEN2)}


def from_huggingface(
    model_or_folder: nn.Module | str | Path,
    implementation: str | Implementation = "naive",
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    options: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Any:
    """A model of Hugging Face with ``implementation`` in every layer, computing the same at valid positions.

    Classes with a language-model head give logits, the base classes features ``[B, S, dim]`` (for BERT
    without its pooler). There is no dropout: outputs are those of ``eval()``. Padding stands at the end of a
    row, and ``lengths`` takes the ``attention_mask`` as a boolean.

    Args:
        model_or_folder: a GPT-2, LLaMA, Qwen2, BERT or Marian model, or a folder with ``config.json`` and
            ``model.safetensors`` (or its shards and their index), for which transformers is not needed.
            Nothing is downloaded, and no pickle is read.
        implementation: a name, ``./file.py``, ``package.module:ATTRIBUTE``, or an ``Implementation``.
        dtype: of the weights; None is that of the given token embeddings.
        device: where the weights shall be; None is where those are, the CPU for a folder.
        options: options of the implementation.
        overrides: fields of ``TransformerConfig`` that replace the model's, such as ``mask``.

    Raises:
        UsageError: a family or class that is not built here, a setting that cannot be carried over, weights
            that are missing, extra or misshaped, a pickle, and what ``build_model`` refuses.
    """
    source = read_source(model_or_folder)
    family = source.settings.choose("model_type", "", _FAMILIES)
    if source.class_name not in family.classes:
        raise UsageError(
            f"{source.settings.where}: of {family.model_type} there are {', '.join(family.classes)}, "
            f"not {source.class_name}{nearest(source.class_name, family.classes)}"
        )
    config = family.config(source.settings, family.classes[source.class_name]).replace(**overrides)
    weights = family.weights(source.tensors, config)
    like = next((tensor for name, tensor in weights.items() if name.endswith("token.weight")), torch.empty(0))
    model = build_model(
        config,
        implementation,
        dtype=like.dtype if dtype is None else dtype,
        device=like.device if device is None else device,
        options=options,
    )
    load_weights(model, weights)
    return model
