"""The FlashAttention kernels by name, for whoever compiles, samples or interprets them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from attnbench.contract.implementation import KernelSpec
from attnbench.contract.launch import Launch
from attnbench.contract.problem import Problem
from attnbench.contract.sampling import ProgramSample

from .programs import KernelPrograms, is_empty, kernels_of
from .splits import DecodePrograms, decodes
from .tiles import SPLITS, tile_for


def _runs(kernel: str, problem: Problem) -> bool:
    return kernel in (DecodePrograms(problem).kernels if decodes(problem) else kernels_of(problem))


def configuration(problem: Problem) -> dict[str, dict[str, int]]:
    """Return the tile of each kernel that runs, and in how many splits decoding reads its keys."""
    if is_empty(problem):
        return {}
    if decodes(problem):
        programs = DecodePrograms(problem)
        return {"decode": {**programs.tile._asdict(), SPLITS: programs.splits}}
    return {kernel: tile_for(problem, kernel=kernel)._asdict() for kernel in kernels_of(problem)}


def _spec(kernel: str, module: str) -> KernelSpec:
    name = f"flash_{kernel}_kernel"

    def function() -> Any:
        from importlib import import_module

        return getattr(import_module(module, __package__), name)  # loads triton

    def sample(problem: Problem) -> ProgramSample:
        if decodes(problem):
            return DecodePrograms(problem).sample(kernel)
        return KernelPrograms(problem, kernel).sample()

    def variants(problem: Problem, target: str) -> Sequence[Launch]:
        from .decode_launch import decode_launches_on_meta  # loads torch
        from .launch import launches_on_meta

        if decodes(problem):
            return decode_launches_on_meta(kernel, problem, target)
        return launches_on_meta(kernel, problem, target) if kernel in kernels_of(problem) else ()

    return KernelSpec(
        name=name, function=function, runs=partial(_runs, kernel), sample_programs=sample, variants=variants
    )


FORWARD = _spec("forward", ".forward_kernel")
DQ = _spec("dq", ".dq_kernel")
DKDV = _spec("dkdv", ".dkdv_kernel")
DECODE = _spec("decode", ".decode_kernel")
MERGE = _spec("merge", ".decode_kernel")
KERNELS = (FORWARD, DQ, DKDV, DECODE, MERGE)
