"""The tiny encoder-decoder, and a source and target for it.

Shared by the tests in this folder.
"""

from typing import Any

import torch

from attnbench.contract.masks import SlidingWindow
from attnbench.model.builder import build_model
from attnbench.model.text import stdlib_tokens

EXACT = ["naive", "sdpa", "sliding-window", "triton-flash"]
SOURCE_LENGTHS, TARGET_LENGTHS = [9, 4, 1], [7, 3, 6]


def translator(name: str = "naive", **overrides: Any) -> Any:
    if name == "sliding-window":
        overrides |= {"mask": SlidingWindow(64), "encoder_mask": SlidingWindow(64, causal=False)}
    dtype = "float32" if name == "triton-flash" else "float64"
    return build_model("tiny-translator", name, **({"dtype": dtype} | overrides))


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return stdlib_tokens(3, 9, seed=1), stdlib_tokens(3, 7, seed=2)
