"""What the order of tokens changes. In: implementations by name. Out: relative differences.

An encoder reads tokens, and the same tokens in another order: ``f(x P)`` against ``f(x) P``.
"""

from collections.abc import Sequence

import torch

from attnbench.model.builder import build_model
from attnbench.model.config import TransformerConfig
from attnbench.model.presets import load_preset
from attnbench.model.weights import generator_for


def permutation_differences(
    *, implementations: Sequence[str], preset: str, n: int, positions: Sequence[str]
) -> dict[str, float]:
    """Return for each kind of positions (``none``, ``learned``, …) the largest difference between features of
    permuted tokens and permuted features, over the largest feature, in float64.
    """
    config = load_preset(preset)
    return {
        position: max(
            _difference(config.replace(position=position, max_seqlen=n), implementation, n)
            for implementation in implementations
        )
        for position in positions
    }


@torch.no_grad()
def _difference(config: TransformerConfig, implementation: str, n: int) -> float:
    model = build_model(config, implementation, dtype="float64")
    generator = generator_for(0, "order")
    tokens = torch.randint(config.vocab_size, (1, n), generator=generator)
    order = torch.randperm(n, generator=generator)
    there, back = model.features(tokens[:, order]), model.features(tokens)[:, order]
    return float((there - back).abs().max() / back.abs().max())
