"""What a search for tiles needs of a GPU: tensors to try them on, and their times. In: a problem, calls."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime import driver
from triton.testing import do_bench

from attnbench.contract.problem import Problem

from .autotune import Trial, say
from .operators import launched

SEED = 0
T = TypeVar("T")


def alike(problem: Problem) -> Problem:
    """Return the problem that stands for all that share its tiles.

    Lengths are rounded up to powers of two, so that nothing is searched anew for every token of a sequence
    that grows, and every key is there.
    """
    p = problem
    return p.replace(
        seqlen_q=_rounded_up(p.seqlen_q),
        seqlen_k=_rounded_up(p.seqlen_k),
        mode="fwd_bwd" if p.needs_gradients else "fwd",
        key_lengths=None,
        query_start=None,
        options={},
    )


def _rounded_up(length: int) -> int:
    return 1 << (length - 1).bit_length() if length else 0


def in_words(problem: Problem, device: torch.device) -> str:
    """Say on what tiles are tried, in a few words."""
    p = problem
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    heads = f"{p.batch} × {p.num_heads} heads of {p.head_dim}"
    return f"{where}, {p.dtype}, {heads}, {p.seqlen_q} × {p.seqlen_k}, {p.mask.slug}"


def random_inputs(problem: Problem, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` and do ``[B, H, Sq, Dv]``.

    No other random numbers of the process change.
    """
    p, generator = problem, torch.Generator(device).manual_seed(SEED)
    shapes = (
        (p.num_heads, p.seqlen_q, p.head_dim),
        (p.num_kv_heads, p.seqlen_k, p.head_dim),
        (p.num_kv_heads, p.seqlen_k, p.head_dim_v),
        (p.num_heads, p.seqlen_q, p.head_dim_v),
    )
    dtype = getattr(torch, p.dtype)
    q, k, v, do = (
        torch.randn(p.batch, *shape, dtype=dtype, device=device, generator=generator) for shape in shapes
    )
    return q, k, v, do


def searched(search: Callable[[torch.device], T], entry: T) -> T:
    """Return what ``search`` finds on the current GPU, or the table's ``entry`` where its memory is short.

    Whoever asks may be counting operators or only pretending to run them; the search is none of that.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    with _disable_current_modes(), torch.no_grad():
        try:
            return search(device)
        except torch.OutOfMemoryError:
            say("no memory left to search for tiles: that of the table is taken")
            return entry
        finally:
            torch.cuda.empty_cache()


def shared_bytes_per_block(device_index: int) -> int:
    """Return the shared memory that Triton lets a block have on a GPU."""
    return int(driver.active.utils.get_device_properties(device_index)["max_shared_mem"])


def time_on_gpu(call: Callable[[], Any]) -> Trial:
    """Time a call with a cold L2 cache, once it is compiled, and read what its kernels spill.

    Raises:
        Exception: whatever the compiler or the launch raises.
    """
    with launched() as compiled:
        call()
    spilled = max((kernel.n_spills for kernel in compiled), default=0)
    return Trial(do_bench(call, return_mode="median"), spilled)
