"""Models made elsewhere, with any attention in every layer. Nothing is downloaded, and no pickle is read.

``from_torch`` takes ``torch.nn.Transformer`` and its parts, ``from_huggingface`` GPT-2, LLaMA, Qwen2, BERT
and Marian, from memory or from a folder of safetensors. What a model does and ours cannot is refused.
"""

from .huggingface import from_huggingface as from_huggingface
from .torch_modules import from_torch as from_torch

__all__ = ["from_huggingface", "from_torch"]
