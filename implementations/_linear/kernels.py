"""The linear-attention kernels by name, for whoever compiles, samples or interprets them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnbench.contract.implementation import KernelSpec
from attnbench.contract.launch import Launch
from attnbench.contract.problem import Problem
from attnbench.contract.sampling import Probe, ProgramSample, Progression, RowRange

from . import programs
from .geometry import Row
from .programs import Shape, Work, kinds, shape_of


class _Kernel(NamedTuple):
    """A kernel of linear attention: its file, the work of each of its launches, whether its programs are by
    query heads, and whether every program of a head is needed for what others compute.
    """

    module: str
    launches: tuple[Callable[[Shape, Row], Work], ...]
    by_query_heads: bool = False
    whole_heads: bool = False


_FORWARD, _BACKWARD, _KEYS = ".forward_kernel", ".backward_kernel", ".keys_kernel"
_KERNELS = {
    "linear_states_kernel": _Kernel(_FORWARD, (programs.states,), whole_heads=True),
    "linear_scan_kernel": _Kernel(
        _FORWARD, (programs.scan, partial(programs.scan, reverse=True)), whole_heads=True
    ),
    "linear_output_kernel": _Kernel(_FORWARD, (programs.output,), by_query_heads=True),
    "linear_dq_kernel": _Kernel(_BACKWARD, (programs.dq,), by_query_heads=True),
    "linear_query_states_kernel": _Kernel(_BACKWARD, (programs.query_states,)),
    "linear_keys_gradient_kernel": _Kernel(
        _KEYS, tuple(partial(programs.keys_gradient, of_keys=of_keys) for of_keys in (True, False))
    ),
}


def sample(name: str, problem: Problem) -> ProgramSample:
    """Return the programs from which the bytes of all follow: of those of head 0 that move the same, the
    first and the last. Of the sums all, so that what is computed from them is right.
    """
    kernel, shape = _KERNELS[name], shape_of(problem, "forward")
    if shape.where.key_chunks == 0:
        return ProgramSample((), ())
    heads = shape.heads if kernel.by_query_heads else shape.kv_heads
    pieces, rows = [], []
    for b, row, alike in kinds(shape.where):
        moved = np.stack([launch(shape, row).requested for launch in kernel.launches])
        _, tiles, blocks = moved.shape
        kind_of = np.unique(moved.reshape(len(moved), -1), axis=1, return_inverse=True)[1].ravel()
        for kind in range(kind_of.max() + 1):
            same = np.flatnonzero(kind_of == kind)
            places = range(len(same)) if kernel.whole_heads else sorted({0, len(same) - 1})
            chosen = [(place, int(same[place])) for place in places]
            probes = tuple(Probe(place, b * heads * tiles * blocks + index) for place, index in chosen)
            pieces.append(Progression(len(same), heads * alike, probes))
            rows += [_rows_of(shape, row, b, index // blocks) for _, index in chosen]
    return ProgramSample(tuple(pieces), tuple(rows) if name == "linear_output_kernel" else None)


def _rows_of(shape: Shape, row: Row, b: int, tile: int) -> RowRange:
    """Return the rows of a tile of queries, in head 0."""
    block = shape.tile.block
    first = tile * block - row.query_start % block
    return RowRange(b, 0, max(first, 0), min(first + block, shape.seqlen_q))


def _spec(name: str, module: str, sampled: bool) -> KernelSpec:
    def function() -> Any:
        from importlib import import_module

        return getattr(import_module(module, __package__), name)  # loads triton

    def variants(problem: Problem, target: str) -> Sequence[Launch]:
        from .meta import launches_on_meta  # loads torch

        return launches_on_meta(name, problem, target)

    return KernelSpec(
        name=name,
        function=function,
        sample_programs=partial(sample, name) if sampled else None,
        variants=variants,
    )


KERNELS = (
    *(_spec(name, kernel.module, sampled=True) for name, kernel in _KERNELS.items()),
    _spec("linear_step_kernel", ".step_kernel", sampled=False),
)
