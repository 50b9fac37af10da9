"""The calls whose rates are ceilings. In: a stopwatch, a device. Out: rates, by the names of ``Ceilings``."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

Rated = dict[str, float | int]

PRODUCT_SIZES = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (2048, 4096, 8192, 16384)}
LONG_PRODUCT_S = {"cpu": 8e-3, "cuda": 1e-3}
"""The size is doubled until a product takes this long: beyond, a larger one is no faster."""
TILE = 256
LEAST_BUFFER_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
MOST_BUFFER_BYTES = 4 << 30
CACHES = 4
"""A bandwidth's arrays hold this many last-level caches, so that at most a quarter is found in one."""
PIECE_BYTES_A_THREAD = 12 << 20
FLOAT_BYTES = 4
EXPONENTIALS_A_THREAD = 32768
"""128 KiB, read and as many written: inside a core's own cache, and as many as PyTorch gives one thread."""
EXPONENTIALS_ON_CUDA = 1 << 22
LAUNCHES = 100


class TooShortError(RuntimeError):
    """The timer sees nothing of it."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("too short for the timer")


class Watch(Protocol):
    """Times a call."""

    def fastest_s(self, call: Callable[[], Any]) -> float | None:
        """Return the seconds of the fastest sample, None if it is too short."""


def products(watch: Watch, device: torch.device, dtype: str) -> float:
    """Return the FLOPs per second of the best of some square products, ``2 n³`` each, of random numbers:
    zeros take less power, which lets a GPU run faster than it ever does.

    Raises:
        RuntimeError: this device does not multiply them.
    """
    tile = torch.randn(TILE, TILE, generator=torch.Generator().manual_seed(0)).to(
        device, getattr(torch, dtype)
    )
    best = 0.0
    for size in PRODUCT_SIZES[device.type]:
        a = tile.repeat(size // TILE, size // TILE)
        b, out = a.clone(), torch.empty_like(a)
        seconds = watch.fastest_s(partial(torch.mm, a, b, out=out))
        if seconds is None:
            continue
        best = max(best, 2 * size**3 / seconds)
        if seconds >= LONG_PRODUCT_S[device.type]:
            break
    if not best:
        raise TooShortError
    return best


def bandwidths(watch: Watch, device: torch.device, cache_bytes: int | None, room_bytes: int | None) -> Rated:
    """Return bytes per second of a copy, a triad and a sum, which go round a buffer, one piece a sample.

    A piece is large enough that its start and end don't count, and done before the scheduler's slice is over.

    Raises:
        RuntimeError: the buffer can't be had.
    """
    wanted = max(LEAST_BUFFER_BYTES[device.type], CACHES * (cache_bytes or 0))
    if room_bytes is not None and room_bytes < wanted:
        raise RuntimeError(f"needs {wanted} bytes, {room_bytes} bytes may be used")
    count = min(wanted, MOST_BUFFER_BYTES) // FLOAT_BYTES // 6 * 6
    whole = torch.ones(count, device=device)
    piece = count
    if device.type == "cpu":
        piece = min(count, PIECE_BYTES_A_THREAD * torch.get_num_threads() // FLOAT_BYTES)
    rates = {
        "copy_bytes_per_s": _streaming(watch, lambda a, b: a.copy_(b), whole.split(count // 2), piece),
        "triad_bytes_per_s": _streaming(
            watch, lambda a, b, c: torch.add(b, c, alpha=0.5, out=a), whole.split(count // 3), piece
        ),
        "read_bytes_per_s": _streaming(watch, lambda a: a.sum(), [whole], piece),
    }
    return {**rates, "buffer_bytes": count * FLOAT_BYTES}


def _streaming(watch: Watch, touch: Callable[..., Tensor], arrays: Sequence[Tensor], piece: int) -> float:
    """Return the bytes per second of ``touch``, one piece of ``piece`` elements of the arrays a call."""
    length = piece // len(arrays)
    pieces = itertools.cycle(list(zip(*(x.split(length)[: len(x) // length] for x in arrays), strict=True)))
    seconds = _seconds(watch, lambda: touch(*next(pieces)))
    return length * len(arrays) * FLOAT_BYTES / seconds


def exponentials(watch: Watch, device: torch.device) -> Rated:
    """Return float32 exponentials per second, where no memory is waited for."""
    if device.type == "cuda":
        from .exp2_kernel import CHAIN, run_exp2_chain

        x = torch.zeros(EXPONENTIALS_ON_CUDA, device=device)
        return {"exp2_per_s": CHAIN * x.numel() / _seconds(watch, lambda: run_exp2_chain(x))}
    x = torch.linspace(-8, 0, EXPONENTIALS_A_THREAD * torch.get_num_threads())
    out = torch.empty_like(x)
    return {"exp2_per_s": x.numel() / _seconds(watch, lambda: torch.exp2(x, out=out))}


def launches(watch: Watch, device: torch.device) -> Rated:
    """Return the microseconds of one operator among many on one element; on a GPU that of its host, or of the
    device if that is slower.
    """
    one = torch.zeros(1, device=device)

    def several() -> None:
        for _ in range(LAUNCHES):
            one.add_(1)

    return {"launch_overhead_us": _seconds(watch, several) / LAUNCHES * 1e6}


def _seconds(watch: Watch, call: Callable[[], Any]) -> float:
    seconds = watch.fastest_s(call)
    if seconds is None:
        raise TooShortError
    return seconds
