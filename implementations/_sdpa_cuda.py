"""PyTorch's fused CUDA attention on tensors that only stand for CUDA ones. In: q, k, v, a mask. Out: out.

A prediction runs on fake CPU tensors (fake CUDA ones with gradients abort a PyTorch built without CUDA).
There ``scaled_dot_product_attention`` takes the CPU's backend or refuses the forced one, so the operator that
CUDA would run is called by its name, with what PyTorch does around it. Shapes come out, and no numbers; what
a kernel allocates for itself within its operator (accumulators, a workspace) is not seen.
"""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad

FLASH_WIDTH = 8
"""Heads of the flash backend are padded to a multiple of this."""
BIAS_WIDTH = 16
"""And masks of the efficient one."""


def cuda_attention(
    backend: SDPBackend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible: Tensor | None,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """Return what the fused ``backend`` gives on CUDA, ``[B, H, Sq, Dv]``; shapes as in ``attention``.

    Raises:
        NotImplementedError: PyTorch describes no such call for fake tensors.
    """
    operators = torch.ops.aten
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if backend is SDPBackend.FLASH_ATTENTION:
        width = q.shape[-1]
        if width % FLASH_WIDTH:
            q, k, v = (pad(x, (0, -width % FLASH_WIDTH)) for x in (q, k, v))
        out: Tensor = operators._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, scale=scale)[0]
        return out[..., :width]
    bias = None if visible is None else _as_bias(visible, q.dtype)
    if backend is SDPBackend.CUDNN_ATTENTION:
        out = operators._scaled_dot_product_cudnn_attention(
            q, k, v, bias, recorded, 0.0, is_causal, scale=scale
        )[0]
        return out
    if recorded and q.shape[1] != k.shape[1]:
        # Its fake gradients of k and v have the query heads.
        raise NotImplementedError(
            "PyTorch describes no backward pass of the efficient backend for grouped heads"
        )
    if bias is not None:
        keys = bias.shape[-1]
        if keys % BIAS_WIDTH:
            bias = pad(bias, (0, -keys % BIAS_WIDTH))[..., :keys]
        bias = bias.expand(*q.shape[:3], keys)
    out = operators._scaled_dot_product_efficient_attention(
        q, k, v, bias, recorded, 0.0, is_causal, scale=scale
    )[0]
    return out


def _as_bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a key is visible, -inf elsewhere."""
    shown, hidden = (torch.scalar_tensor(x, dtype=dtype, device=visible.device) for x in (0, -torch.inf))
    return torch.where(visible, shown, hidden)
