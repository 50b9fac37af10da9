"""Real text that every Python brings along: the bytes of its standard library's sources, as tokens 0…255."""

import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from attnbench.contract.errors import UsageError


@cache
def stdlib_bytes() -> bytes:
    """The standard library's top-level modules, one after the other in the order of their names (4 to 5 MB).

    Raises:
        UsageError: this Python was installed without its sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    if not text:
        raise UsageError(f"real text: this Python keeps no standard library sources in {folder}")
    return text


def stdlib_tokens(batch: int, seqlen: int, seed: int = 0) -> Tensor:
    """Passages of the standard library's sources, int64 ``[batch, seqlen]``; the same for the same seed.

    Raises:
        UsageError: there are no sources, or fewer bytes than ``seqlen``.
    """
    text = stdlib_bytes()
    if batch < 0 or not 0 <= seqlen <= len(text):
        raise UsageError(
            f"real text: {batch} passages of {seqlen} bytes; there are {len(text)} bytes to take them from"
        )
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - seqlen + 1, (batch, 1), generator=generator)
    corpus = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return corpus[starts + torch.arange(seqlen)].long()
