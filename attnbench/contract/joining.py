"""Attention of some rows over parts of their keys, one after the other. In: what attends over a part. Out:
out, lse and gradients of the whole.

Over disjoint keys A and B, with lse the logarithm of the sum of all weights,

``lse = log(e^{lse_A} + e^{lse_B})`` and ``out = e^{lse_A - lse} out_A + e^{lse_B - lse} out_B``.

So a row over a million keys needs the memory of a part; gradients take a second pass, as each part's share
``e^{lse_A - lse}`` is known only then.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Attended = tuple[Tensor, Tensor | None, tuple[Tensor, Tensor, Tensor]]
"""out ``[B, H, R, Dv]`` and lse ``[B, H, R]`` over a part, and the q, k and v that they were made from."""


class Joined(NamedTuple):
    """Results over all parts: with an upstream gradient that of q, and of k and v in each part."""

    out: Tensor
    lse: Tensor | None
    dq: Tensor | None
    of_keys: list[tuple[slice, Tensor, Tensor]]


def attend_whole(attend: Callable[[slice], Attended], keys: slice, upstream: Tensor | None) -> Joined:
    """Attend over one part that is everything."""
    with torch.set_grad_enabled(upstream is not None):
        out, lse, leaves = attend(keys)
    if upstream is None:
        return Joined(out, lse, None, [])
    dq, dk, dv = _gradients((out,), leaves, (upstream.to(out.dtype),))
    return Joined(out.detach(), None if lse is None else lse.detach(), dq, [(keys, dk, dv)])


def attend_in_parts(
    attend: Callable[[slice], Attended], parts: Sequence[slice], upstream: Tensor | None
) -> Joined:
    """Attend over several parts, and join them in float32 or better."""
    joined = None
    with torch.no_grad():
        for part in parts:
            out, lse, (q, *_) = attend(part)
            joined = _join(joined, _wide(out), _wide(_known(lse)))
    if joined is None:
        raise ValueError("no part to attend to")
    whole, whole_lse = joined
    narrow = whole.to(q.dtype)
    if upstream is None:
        return Joined(narrow, whole_lse, None, [])
    upstream = upstream.to(whole.dtype)
    drop = (upstream * whole).sum(dim=-1)
    dq, of_keys = torch.zeros_like(q, dtype=whole.dtype), []
    for part in parts:
        with torch.enable_grad():
            out, lse, leaves = attend(part)
        lse = _known(lse)
        share = _share(_wide(lse.detach()), whole_lse)
        of_lse = share * ((upstream * _wide(out.detach())).sum(dim=-1) - drop)
        of_out = share[..., None] * upstream
        part_dq, dk, dv = _gradients((out, lse), leaves, (of_out.to(out.dtype), of_lse.to(lse.dtype)))
        dq += part_dq
        of_keys.append((part, dk, dv))
    return Joined(narrow, whole_lse, dq.to(q.dtype), of_keys)


def _join(joined: tuple[Tensor, Tensor] | None, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    if joined is None:
        return out, lse
    before, lse_before = joined
    total = torch.logaddexp(lse_before, lse)
    return _share(lse_before, total)[..., None] * before + _share(lse, total)[..., None] * out, total


def _share(lse: Tensor, total: Tensor) -> Tensor:
    """Return ``e^{lse - total}``, 0 in rows that see no key at all."""
    return (lse - total).exp().masked_fill(total == -torch.inf, 0)


def _gradients(
    results: tuple[Tensor, ...], leaves: tuple[Tensor, Tensor, Tensor], given: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    if not results[0].numel():
        return tuple(torch.zeros_like(x) for x in leaves)
    found = torch.autograd.grad(results, leaves, given, allow_unused=True)
    return tuple(torch.zeros_like(x) if part is None else part for x, part in zip(leaves, found, strict=True))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _known(lse: Tensor | None) -> Tensor:
    if lse is None:
        raise TypeError(
            "semantics that join parts of the keys return the logarithm of the sum of their weights"
        )
    return lse
