"""Softmax attention by the FlashAttention kernels, whichever takes a problem. In: q, k, v. Out: out, lse."""

import torch
from torch import Tensor

from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.problem import Problem
from attnbench.implementations._shared.once import refuse_forward_mode

from .decode import flash_decode
from .forward import flash_forward
from .splits import decodes


def flash_attention(q: Tensor, k: Tensor, v: Tensor, *, problem: Problem) -> AttentionOutput:
    """``softmax(q kᵀ · scale + mask) v``: few queries share out their keys, all else goes by query tiles.

    Shapes and errors as in ``flash_forward``, which alone has gradients.
    """
    refuse_forward_mode("the FlashAttention kernels", q, k, v)
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    attend = flash_decode if decodes(problem) and not recorded else flash_forward
    return attend(q, k, v, problem=problem)
