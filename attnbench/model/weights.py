"""Weights drawn by seed and name alone, so that every implementation gets the same. In: a module, a seed."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .layers import Embedding, Linear, LinearHead


def generator_for(seed: int, name: str) -> torch.Generator:
    """A CPU generator of its own for one name: what is drawn for other names changes nothing."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Seed torch's own generators for modules that draw their weights themselves, and put them back after."""
    place = torch.device(device)
    on_gpu = place.type == "cuda" and torch.cuda.is_available()
    with torch.random.fork_rng(devices=[place] if on_gpu else []):
        # Not torch.manual_seed: it would seed devices that nothing puts back.
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(place):
                torch.cuda.manual_seed(seed)
        yield


def is_real(tensor: Tensor) -> bool:
    """Whether there is memory behind the tensor: false on the meta device and under fake tensors."""
    return type(tensor.data) is Tensor and not tensor.is_meta


def device_type(tensor: Tensor) -> str:
    """The kind of device that the tensor is on, or that it stands for under a fake mode which says so."""
    kind: str = getattr(getattr(tensor, "fake_mode", None), "stands_for", tensor.device.type)
    return kind


@torch.no_grad()
def draw_weights(root: nn.Module, *, seed: int, depth: int) -> None:
    """Draw each matrix of ``Linear``, ``Embedding`` and heads from ``N(0, 1 / columns)``; biases are 0.

    Projections back into the residual stream are divided by ``sqrt(2 * depth)``, so that its variance does
    not grow with depth (GPT-2). Mixers that bring modules of other classes have drawn them themselves.
    """
    for name, module in root.named_modules():
        if not isinstance(module, Linear | Embedding | LinearHead) or module.weight is None:
            continue
        if not is_real(module.weight):
            continue
        std = module.weight.shape[1] ** -0.5
        if name.endswith(("out_proj", "down")):
            std *= (2 * depth) ** -0.5
        drawn = torch.empty(module.weight.shape).normal_(0.0, std, generator=generator_for(seed, name))
        module.weight.copy_(drawn)
        if isinstance(module, Linear) and module.bias is not None:
            module.bias.zero_()
