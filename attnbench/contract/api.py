"""Attention in one call, for people at a prompt: tensors in, the problem built from their shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from .discovery import get_implementation
from .errors import UsageError
from .implementation import AttentionOutput, Implementation, level_refusals, refusals
from .masks import Causal, Mask, mask_from, mask_types
from .problem import Problem

if TYPE_CHECKING:
    from torch import Tensor


def _check_tensors(q: "Tensor", k: "Tensor", v: "Tensor") -> None:
    import torch

    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor):
            kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
            raise UsageError(
                f"{name} must be a torch.Tensor [batch, heads, seqlen, head_dim], not {kind}; "
                f"torch.as_tensor makes one of an array"
            )
        if tensor.dim() != 4:
            raise UsageError(f"{name} must be [batch, heads, seqlen, head_dim], not {list(tensor.shape)}")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise UsageError(f"q, k and v have batch sizes {q.shape[0]}, {k.shape[0]} and {v.shape[0]}")
    if k.shape[:3] != v.shape[:3]:
        raise UsageError(f"k {list(k.shape)} and v {list(v.shape)} differ in heads or length")
    if q.shape[3] != k.shape[3]:
        raise UsageError(f"q has head_dim {q.shape[3]}, k has {k.shape[3]}")
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        found = ", ".join(
            f"{name} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
            for name, tensor in (("q", q), ("k", k), ("v", v))
        )
        raise UsageError(f"q, k and v must have one dtype and one device, not {found}")


def _masks_to_pass(implementation: Implementation, mask: Mask) -> str:
    """Return how to pass a mask that the implementation supports, where it lacks the one asked for."""
    names = sorted(need.removeprefix("mask:") for need in implementation.supports if need.startswith("mask:"))
    if not names or mask.name in names or "*" in names:
        return ""
    kind = mask_types().get(names[0])
    required = [] if kind is None else [item.name for item in fields(kind) if item.default is MISSING]
    table = ", ".join([f"'name': '{names[0]}'", *(f"'{name}': …" for name in required)])
    example = f"{{{table}}}" if required else repr(names[0])
    return f"; of masks it supports {', '.join(names)}: pass mask={example}"


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
        UsageError: something of the wrong kind, shapes that do not fit, an unknown name, or a feature that
            the implementation does not support.
    """
    _check_tensors(q, k, v)
    if not isinstance(implementation, str | Implementation):
        raise UsageError(
            "implementation must be a name, './file.py', 'package.module:ATTRIBUTE' or an Implementation, "
            f"not {implementation!r}"
        )
    chosen = get_implementation(implementation) if isinstance(implementation, str) else implementation
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
        key_lengths=key_lengths,  # type: ignore[arg-type]  # any sequence: Problem makes a tuple of it
        query_start=query_start,  # type: ignore[arg-type]
        options=options or {},
    )
    with_lse = problem.replace(options={"return_lse": True, **dict(problem.options)})
    problem = problem if refusals(chosen, with_lse) else with_lse
    reasons = level_refusals(chosen, problem, "attention")
    if reasons:
        raise UsageError("; ".join(reasons) + _masks_to_pass(chosen, problem.mask))
    return chosen.attention(q, k, v, problem=problem, params=params)
