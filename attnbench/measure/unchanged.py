"""Whether a call left its inputs alone. In: tensors before and after. Out: which of them were written to."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def fingerprints(inputs: Mapping[str, Tensor]) -> dict[str, Tensor | bytes]:
    """Return what each tensor is told by later: on the CPU its SHA-256, else a copy.

    Copies of a million tokens are a gigabyte. A GPU compares one in less time than its numbers take to the
    CPU, and what a check holds there is no part of what is measured.
    """
    return {name: _fingerprint(x.detach()) for name, x in inputs.items()}


def _fingerprint(x: Tensor) -> Tensor | bytes:
    if x.device.type != "cpu":
        return x.clone()
    numbers = x.contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(numbers.data).digest()


def _is_as_before(x: Tensor, before: Tensor | bytes) -> bool:
    if isinstance(before, bytes):
        return _fingerprint(x) == before
    return torch.equal(x, before)


def changed_inputs(given: Mapping[str, Tensor | bytes], inputs: Mapping[str, Tensor]) -> str | None:
    """Say which of the inputs are not what they were when their fingerprints were taken, if any."""
    changed = [name for name, before in given.items() if not _is_as_before(inputs[name].detach(), before)]
    return f"it writes to its inputs: {', '.join(changed)}" if changed else None
