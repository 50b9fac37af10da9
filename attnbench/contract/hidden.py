"""Hidden slots: keys that no query of their batch row sees. In: k, v. Out: the same with those slots zeroed,
at no cost if none is.

0 · NaN is NaN, so what lies in a hidden slot (an uninitialised cache, padding) must be replaced before it
meets a matmul. Its gradient is then exactly zero. Kernels that never load a hidden slot do not need this.
"""

import torch
from torch import Tensor

from .problem import Problem


def hidden_keys(problem: Problem, device: torch.device) -> Tensor | None:
    """Return ``[B, G, Sk]`` (or ``[B, 1, Sk]`` for uniform masks), true where no query sees the key.

    ``None`` if every key is seen.
    """
    p = problem
    if p.keys_seen() == p.batch * p.num_kv_heads * p.seqlen_k:
        return None
    groups = 1 if p.mask.uniform else p.num_kv_heads
    seen = torch.zeros(p.batch, groups, p.seqlen_k, dtype=torch.bool)
    starts, limits = p.query_starts, p.key_limits
    for b in range(p.batch):
        for g in range(groups):
            for h in range(g * p.group_size, (g + 1) * p.group_size if groups > 1 else 1):
                marked = torch.from_numpy(p.mask.keys_seen(p.seqlen_q, limits[b], starts[b], b, h))
                seen[b, g, : limits[b]] |= marked
    return ~seen.to(device)


def zero_hidden(k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return k ``[B, G, Sk, D]`` and v ``[B, G, Sk, Dv]`` with every hidden slot zero."""
    hidden = hidden_keys(problem, k.device)
    if hidden is None:
        return k, v
    return k.masked_fill(hidden[..., None], 0), v.masked_fill(hidden[..., None], 0)


def keys_near(problem: Problem, first: int, last: int) -> slice:
    """Return the range of the keys that queries ``first … last`` of any batch row may see.

    From the mask's band; all keys if it has none.
    """
    band = problem.mask.band()
    if band is None:
        return slice(0, problem.seqlen_k)
    starts = problem.query_starts or (0,)
    lo = 0 if band.left is None else max(0, min(starts) + first - band.left)
    hi = (
        problem.seqlen_k if band.right is None else min(problem.seqlen_k, max(starts) + last + band.right + 1)
    )
    return slice(min(lo, problem.seqlen_k), min(max(lo, hi), problem.seqlen_k))


def queries_near(problem: Problem, first: int, last: int) -> slice:
    """Return the range of the queries, of any batch row, that may see keys ``first … last``."""
    band, seqlen = problem.mask.band(), problem.seqlen_q
    if band is None:
        return slice(0, seqlen)
    starts = problem.query_starts or (0,)
    lo = 0 if band.right is None else max(0, first - max(starts) - band.right)
    hi = seqlen if band.left is None else min(seqlen, last - min(starts) + band.left + 1)
    return slice(min(lo, seqlen), max(min(lo, seqlen), hi))


def visible_matrix(
    problem: Problem, device: torch.device, rows: Tensor | None = None, keys: slice | Tensor = slice(None)
) -> Tensor:
    """Return the mask as ``[B or 1, H or 1, Sq, Sk]`` booleans.

    The predicate and the key lengths, for these ``rows`` and ``keys`` (a range, or positions on the device).
    """
    p = problem
    heads = 1 if p.mask.uniform else p.num_heads
    kinds = p.kinds_of_rows()
    same_rows = p.mask.uniform and len(kinds) <= 1
    batch = min(p.batch, 1) if same_rows else p.batch
    positions = list(kinds)[:batch] if same_rows else list(zip(p.query_starts, p.key_limits, strict=True))
    index = torch.arange(p.seqlen_q, device=device) if rows is None else rows.to(device)
    start = torch.tensor([first for first, _ in positions], device=device, dtype=torch.int64).view(
        -1, 1, 1, 1
    )
    limit = torch.tensor([last for _, last in positions], device=device, dtype=torch.int64).view(-1, 1, 1, 1)
    b = torch.arange(batch, device=device).view(-1, 1, 1, 1)
    h = torch.arange(heads, device=device).view(1, -1, 1, 1)
    if isinstance(keys, slice):
        keys = torch.arange(*keys.indices(p.seqlen_k), device=device)
    k_pos = keys.view(1, 1, 1, -1)
    q_pos = start + index.view(1, 1, -1, 1)
    visible: Tensor = p.mask.visible(b, h, q_pos, k_pos)
    if p.key_lengths is not None:
        visible = visible & (k_pos < limit)
    shape = (batch, heads, index.numel(), k_pos.shape[-1])
    # A view that shows every element once could be written to, but PyTorch's compiler would not take that.
    return visible if visible.shape == shape else visible.expand(shape)
