"""Passes made of many PyTorch operators, as one operator of a program that PyTorch compiles.

In: functions. Out: a function of q, k, v. In eager mode the passes run as they are, and counters see what
they are made of; traced, their loops over pieces would be unrolled, and writes through views refused.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.contract.cost import Cost
from attnbench.contract.problem import Problem

from .constant import NAMES, constant
from .operators import LIBRARY, define

Results = tuple[Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]


def one_operator(
    name: str,
    forward: Callable[[Tensor, Tensor, Tensor, Problem], Results],
    backward: Callable[..., Gradients],
    *,
    fills_rows: Callable[[Problem], bool],
    differentiates_rows: bool,
    keeps_results: bool,
    cost: Callable[[Problem], Cost],
) -> Callable[[Tensor, Tensor, Tensor, Problem], Results]:
    """Register ``attnbench::{name}`` and ``attnbench::{name}_backward`` and return what calls the first.

    Args:
        name: of the operator.
        forward: ``(q, k, v, problem) → (out, of_rows)``.
        backward: ``(q, k, v, out, of_rows, grad_out, grad_of_rows, problem) → (dq, dk, dv)``.
        fills_rows: whether ``of_rows`` is ``[B, H, Sq]`` in float32 (float64 for float64), and not empty.
        differentiates_rows: whether ``of_rows`` has a gradient; without one ``grad_of_rows`` is None.
        keeps_results: whether the backward pass gets ``out`` and ``of_rows``, and not None.
        cost: of a problem, for its executed FLOPs.
    """
    inputs = "Tensor q, Tensor k, Tensor v"
    kept = "Tensor? out, Tensor? of_rows, Tensor grad_out, Tensor? grad_of_rows"
    define(f"{name}({inputs}, str problem) -> (Tensor out, Tensor of_rows)")
    define(f"{name}_backward({inputs}, {kept}, str problem) -> (Tensor dq, Tensor dk, Tensor dv)")

    def run(q: Tensor, k: Tensor, v: Tensor, problem: str) -> Results:
        return forward(q, k, v, read_problem(problem))

    def run_backward(*arguments: Any) -> Gradients:
        return backward(*arguments[:-1], read_problem(arguments[-1]))

    def shapes(q: Tensor, k: Tensor, v: Tensor, problem: str) -> Results:
        wide = torch.promote_types(q.dtype, torch.float32)
        of_rows = q.shape[:3] if fills_rows(read_problem(problem)) else (0,)
        return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(of_rows, dtype=wide)

    def shapes_backward(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Gradients:
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)

    for suffix, function, fake in (("", run, shapes), ("_backward", run_backward, shapes_backward)):
        LIBRARY.impl(name + suffix, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"attnbench::{name}{suffix}", fake, lib=LIBRARY)
    operator = getattr(torch.ops.attnbench, name)
    backward_operator = getattr(torch.ops.attnbench, f"{name}_backward")

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        *tensors, ctx.problem = inputs
        if not differentiates_rows:
            ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *(output if keeps_results else ()))

    def differentiate(
        ctx: Any, grad_out: Tensor | None, grad_of_rows: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        q, k, v, *results = ctx.saved_tensors
        do = q.new_zeros(*q.shape[:3], v.shape[3]) if grad_out is None else grad_out
        kept = results or (None, None)
        return *backward_operator(q, k, v, *kept, do, grad_of_rows, ctx.problem), None

    def refuse(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(f"attnbench::{name} has no second derivative")

    torch.library.register_autograd(f"attnbench::{name}", differentiate, setup_context=keep, lib=LIBRARY)
    torch.library.register_autograd(f"attnbench::{name}_backward", refuse, lib=LIBRARY)

    def executed(mode: str, problem: str) -> int:
        return cost(read_problem(problem).replace(mode=mode)).executed_flops or 0

    @register_flop_formula(operator)
    def flops_of_forward(q: Any, k: Any, v: Any, problem: str, **_: Any) -> int:
        return executed("fwd", problem)

    @register_flop_formula(backward_operator)
    def flops_of_backward(*arguments: Any, **_: Any) -> int:
        return executed("bwd", arguments[-1])

    def call(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Results:
        results: Results = operator(q, k, v, written_problem(problem))
        return results

    return call


@constant
def written_problem(problem: Problem) -> str:
    """Write a problem as text, which a graph can hold and a later process read."""
    plain = {name: getattr(problem, name) for name in NAMES}
    return json.dumps({**plain, "mask": problem.mask.to_dict(), "options": dict(problem.options)})


@lru_cache(maxsize=256)
def read_problem(text: str) -> Problem:
    """Return the problem that was written."""
    return Problem(**json.loads(text))
