"""Real text that every Python brings along: the bytes of its standard library's sources, as tokens 0…255.

Text to train on and text to judge by are whole files, told apart by a hash of their names: what is held out
under one Python version is held out under all.
"""

import hashlib
import sysconfig
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from attnbench.contract.errors import UsageError

_HELD_OUT_BELOW = 26
"""Of the 256 values that a name's first hash byte can have: about one file in ten."""


@cache
def stdlib_files() -> dict[str, bytes]:
    """The standard library's top-level modules by name, in the order of their names (4 to 5 MB).

    Raises:
        UsageError: this Python was installed without its sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    found = {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}
    if not any(found.values()):
        raise UsageError(f"real text: this Python keeps no standard library sources in {folder}")
    return found


def is_held_out(name: str) -> bool:
    """Whether the file of this name is never trained on."""
    return hashlib.sha256(name.encode()).digest()[0] < _HELD_OUT_BELOW


@cache
def stdlib_bytes() -> bytes:
    """All of ``stdlib_files``, one after the other."""
    return b"".join(stdlib_files().values())


@cache
def training_bytes() -> bytes:
    """The files of ``stdlib_files`` that may be trained on, one after the other."""
    return b"".join(text for name, text in stdlib_files().items() if not is_held_out(name))


@cache
def held_out_bytes() -> bytes:
    """The files of ``stdlib_files`` that are never trained on, one after the other."""
    return b"".join(text for name, text in stdlib_files().items() if is_held_out(name))


@cache
def sample_bytes() -> bytes:
    """Held-out files of one Python version that come along: a loss on them is the same number everywhere."""
    return files(__package__).joinpath("data", "held-out.txt").read_bytes()


def random_passages(text: bytes, batch: int, seqlen: int, generator: torch.Generator) -> Tensor:
    """Passages that begin anywhere in ``text``, int64 ``[batch, seqlen]``.

    Raises:
        UsageError: ``text`` has fewer bytes than ``seqlen``.
    """
    if batch < 0 or not 0 <= seqlen <= len(text):
        raise UsageError(
            f"real text: {batch} passages of {seqlen} bytes; there are {len(text)} bytes to take them from"
        )
    return _cut(text, torch.randint(len(text) - seqlen + 1, (batch,), generator=generator), seqlen)


def even_passages(text: bytes, batch: int, seqlen: int) -> Tensor:
    """Passages at even distances over all of ``text``, int64 ``[batch, seqlen]``, that share no byte.

    Raises:
        UsageError: ``text`` has fewer bytes than all passages together.
    """
    if batch < 1 or seqlen < 1 or batch * seqlen > len(text):
        raise UsageError(
            f"real text: {batch} passages of {seqlen} bytes; there are {len(text)} bytes to take them from"
        )
    return _cut(text, torch.arange(batch) * (len(text) // batch), seqlen)


def _cut(text: bytes, starts: Tensor, seqlen: int) -> Tensor:
    corpus = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return corpus[starts.unsqueeze(1) + torch.arange(seqlen)].long()


def stdlib_tokens(batch: int, seqlen: int, seed: int = 0) -> Tensor:
    """Passages of the standard library's sources, int64 ``[batch, seqlen]``; the same for the same seed.

    Raises:
        UsageError: there are no sources, or fewer bytes than ``seqlen``.
    """
    return random_passages(stdlib_bytes(), batch, seqlen, torch.Generator().manual_seed(seed))
