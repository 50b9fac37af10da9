"""Forms that kernels are compiled in: widths, types, masks. In: an implementation. Out: problems for CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnbench.contract.implementation import Implementation, refusals
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem

MASKS: dict[str, Mask] = {"causal": Causal(), "full": Full(), "sliding-window": SlidingWindow(256)}
MODES = ("fwd", "fwd_bwd", "decode")
SEQLEN, RAGGED_SEQLEN = 4096, 4099


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a kernel is compiled for, besides a target.

    ``ragged``: a length that no tile divides, grouped heads, and key lengths, as far as they are supported.
    """

    head_dim: int
    dtype: str = "bfloat16"
    mask: str | None = None
    """None: the first of `MASKS` that the implementation takes."""
    ragged: bool = False

    def __str__(self) -> str:
        words = (self.dtype, f"D{self.head_dim}", self.mask, "ragged" if self.ragged else None)
        return " ".join(word for word in words if word)


def problems(implementation: Implementation, form: Form) -> Iterator[Problem]:
    """Yield the problem of each mode that the implementation takes in that form."""
    for mask in MASKS if form.mask is None else (form.mask,):
        found = [
            problem
            for mode in MODES
            if not refusals(implementation, problem := _problem(implementation, form, mask, mode))
        ]
        yield from found
        if found:
            return


def _problem(implementation: Implementation, form: Form, mask: str, mode: str) -> Problem:
    length = RAGGED_SEQLEN if form.ragged else SEQLEN
    batch = 2
    grouped = form.ragged and "grouped-heads" in implementation.supports
    some_keys = form.ragged and "key-lengths" in implementation.supports
    return Problem(
        batch=batch,
        num_heads=6 if grouped else 16,
        num_kv_heads=2 if grouped else 16,
        seqlen_q=1 if mode == "decode" else length,
        seqlen_k=length,
        head_dim=form.head_dim,
        dtype=form.dtype,
        device="cuda",
        mask=MASKS[mask],
        mode=mode,
        key_lengths=(length, length // 3) if some_keys else None,
    )
