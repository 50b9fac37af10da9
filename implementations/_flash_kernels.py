"""The FlashAttention kernels by name, for whoever compiles, samples or interprets them."""

from collections.abc import Sequence
from typing import Any

from attnbench.contract.implementation import KernelSpec
from attnbench.contract.launch import Launch
from attnbench.contract.problem import Problem
from attnbench.contract.sampling import ProgramSample

from ._flash_programs import KernelPrograms, kernels_of


def _spec(kernel: str, module: str) -> KernelSpec:
    name = f"flash_{kernel}_kernel"

    def function() -> Any:
        from importlib import import_module

        return getattr(import_module(module, __package__), name)  # loads triton

    def sample(problem: Problem) -> ProgramSample:
        return KernelPrograms(problem, kernel).sample()

    def variants(problem: Problem, target: str) -> Sequence[Launch]:
        from ._flash_launch import launches_on_meta  # loads torch

        return launches_on_meta(kernel, problem, target) if kernel in kernels_of(problem) else ()

    return KernelSpec(name=name, function=function, sample_programs=sample, variants=variants)


FORWARD = _spec("forward", "._flash_kernel")
DQ = _spec("dq", "._flash_backward_kernel")
DKDV = _spec("dkdv", "._flash_backward_kernel")
KERNELS = (FORWARD, DQ, DKDV)
