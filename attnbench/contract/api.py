"""Attention in one call, for people at a prompt: tensors in, the problem built from their shapes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .discovery import get_implementation
from .errors import UsageError
from .implementation import AttentionOutput, Implementation, level_refusals
from .masks import Causal, Mask, mask_from
from .problem import Problem

if TYPE_CHECKING:
    from torch import Tensor


def _check_tensors(q: "Tensor", k: "Tensor", v: "Tensor") -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise UsageError(f"{name} must be [batch, heads, seqlen, head_dim], not {list(tensor.shape)}")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise UsageError(f"q, k and v have batch sizes {q.shape[0]}, {k.shape[0]} and {v.shape[0]}")
    if k.shape[:3] != v.shape[:3]:
        raise UsageError(f"k {list(k.shape)} and v {list(v.shape)} differ in heads or length")
    if q.shape[3] != k.shape[3]:
        raise UsageError(f"q has head_dim {q.shape[3]}, k has {k.shape[3]}")
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        raise UsageError("q, k and v must have one dtype and one device")


def attend(
    q: "Tensor",
    k: "Tensor",
    v: "Tensor",
    *,
    implementation: str | Implementation = "naive",
    mask: Mask | str | Mapping[str, Any] | None = None,
    scale: float | None = None,
    key_lengths: Sequence[int] | None = None,
    query_start: int | Sequence[int] | None = None,
    options: Mapping[str, Any] | None = None,
    params: "Mapping[str, Tensor] | None" = None,
) -> AttentionOutput:
    """Attend: ``out = softmax(q kᵀ · scale + mask) v`` by the named implementation (or what its semantics
    say).

    Args:
        q: queries ``[B, H, Sq, D]``.
        k: keys ``[B, G, Sk, D]``; query head h reads key/value head ``h // (H // G)``.
        v: values ``[B, G, Sk, Dv]``.
        implementation: a name, ``./file.py``, ``package.module:ATTRIBUTE``, or an ``Implementation``.
        mask: default ``Causal()``; bottom-right aligned unless ``query_start`` says otherwise.
        scale: factor on the logits, default ``D ** -0.5``.
        key_lengths: one per batch row; later slots are hidden.
        query_start: absolute position of the first query, one for all rows or one per batch row; default ``Sk
            - Sq``.
        options: options of the implementation.
        params: its learned or random parts, if it has any.

    Returns:
        ``out`` ``[B, H, Sq, Dv]``, and ``lse`` ``[B, H, Sq]`` where the implementation supports it, else
        None.

    Raises:
        UsageError: shapes that do not fit, an unknown name, or a feature that the implementation does not
            support.
    """
    _check_tensors(q, k, v)
    chosen = (
        implementation if isinstance(implementation, Implementation) else get_implementation(implementation)
    )
    inputs_need_gradients = any(tensor.requires_grad for tensor in (q, k, v))
    import torch

    problem = Problem(
        batch=q.shape[0],
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        seqlen_q=q.shape[2],
        seqlen_k=k.shape[2],
        head_dim=q.shape[3],
        head_dim_v=v.shape[3],
        dtype=str(q.dtype).removeprefix("torch."),
        device=q.device.type,
        mask=Causal() if mask is None else mask_from(mask),
        scale=scale,
        mode="fwd_bwd" if inputs_need_gradients and torch.is_grad_enabled() else "fwd",
        key_lengths=None if key_lengths is None else tuple(key_lengths),
        query_start=query_start
        if query_start is None or isinstance(query_start, int)
        else tuple(query_start),
        options={**({"return_lse": True} if "lse" in chosen.supports else {}), **(options or {})},
    )
    reasons = level_refusals(chosen, problem, "attention")
    if reasons:
        raise UsageError("; ".join(reasons))
    return chosen.attention(q, k, v, problem=problem, params=params)
