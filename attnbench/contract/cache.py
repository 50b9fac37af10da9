"""The key/value cache: keys and values of each batch row, in slots that exist from the start. In: chunks of k
and v. Out: what a step reads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .errors import UsageError


@dataclass
class KeyValueCache:
    """Keys ``[B, G, slots, D]`` and values ``[B, G, slots, Dv]``; row b has seen ``lengths[b]`` positions.

    Position p lies in slot p, in a ``ring`` in slot ``p % slots``. What lies in unfilled slots is undefined.
    """

    k: Tensor
    v: Tensor
    lengths: tuple[int, ...]
    ring: bool = False

    @property
    def slots(self) -> int:
        """How many positions of a row have room."""
        return self.k.shape[2]

    def require_room(self, added: Sequence[int]) -> tuple[int, ...]:
        """Return how many positions each row will have seen with ``added[b]`` more.

        Raises:
            UsageError: the chunk has other rows than the cache, or does not fit into what is left.
        """
        if len(added) != len(self.lengths):
            raise UsageError(f"state: made for {len(self.lengths)} rows, the chunk has {len(added)}")
        ends = tuple(start + count for start, count in zip(self.lengths, added, strict=True))
        if not self.ring and max(ends, default=0) > self.slots:
            raise UsageError(f"state: the cache holds {self.slots} positions, {max(ends)} are needed")
        return ends

    def write(self, k: Tensor, v: Tensor, added: Sequence[int]) -> None:
        """Put the first ``added[b]`` tokens of a chunk into the slots behind what row b has seen.

        ``lengths`` is left as it is: no step reads the new slots before it says so.
        """
        if len(set(zip(self.lengths, added, strict=True))) <= 1:
            start, count = max(self.lengths, default=0), max(added, default=0)
            token = max(0, count - self.slots)
            while token < count:
                slot = (start + token) % self.slots
                size = min(count - token, self.slots - slot)
                self.k[:, :, slot : slot + size] = k[:, :, token : token + size]
                self.v[:, :, slot : slot + size] = v[:, :, token : token + size]
                token += size
            return
        counts, tokens = np.array(added)[:, None], np.arange(k.shape[2])
        rows, tokens = ((counts - self.slots <= tokens) & (tokens < counts)).nonzero()
        slots = (np.array(self.lengths)[rows] + tokens) % self.slots
        where, source, target = torch.tensor(np.stack((rows, tokens, slots)), device=k.device).unbind()
        self.k[where, :, target] = k[where, :, source]
        self.v[where, :, target] = v[where, :, source]

    def first(self, count: int) -> tuple[Tensor, Tensor]:
        """View the first ``count`` slots of keys and values."""
        return self.k[:, :, :count], self.v[:, :, :count]

    def before(self, k: Tensor, v: Tensor, kept: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return, in order, the latest ``kept[b]`` positions of row b and behind them the chunk's.

        ``[B, G, max(kept) + T, …]``; what lies behind a row's chunk is undefined.
        """
        if len(set(self.lengths)) <= 1:
            count = max(kept, default=0)
            oldest = (max(self.lengths, default=0) - count) % max(self.slots, 1)
            tail, head = slice(oldest, oldest + count), slice(0, max(0, oldest + count - self.slots))
            keys, values = (
                torch.cat((held[:, :, tail], held[:, :, head], new), dim=2)
                for held, new in ((self.k, k), (self.v, v))
            )
            return keys, values
        old, column = np.array(kept)[:, None], np.arange(max(kept) + k.shape[2])
        in_ring = (np.array(self.lengths)[:, None] - old + column) % self.slots
        in_chunk = self.slots + np.minimum(column - old, k.shape[2] - 1)
        index = torch.tensor(np.where(column < old, in_ring, in_chunk), device=k.device)[:, None, :, None]
        keys, values = (
            both.gather(2, index.expand(-1, both.shape[1], -1, both.shape[3]))
            for both in (torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2))
        )
        return keys, values

    def keep(self) -> "Callable[[], KeyValueCache]":
        """Return what puts the cache back as it is now; only a ring copies: it overwrites what it holds."""
        lengths = self.lengths
        copies = [(x, x.clone()) for x in (self.k, self.v)] if self.ring else []

        def restore() -> KeyValueCache:
            for x, copy in copies:
                x.copy_(copy)
            self.lengths = lengths
            return self

        return restore
