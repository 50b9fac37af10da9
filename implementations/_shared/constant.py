"""Functions of a problem whose results are constants of a program that PyTorch compiles.

In: a function of a problem that returns plain numbers and text. Out: the same, called while tracing.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from attnbench.contract.masks import Mask
from attnbench.contract.problem import Problem

P = ParamSpec("P")
T = TypeVar("T")
NAMES = tuple(field.name for field in fields(Problem))


def _number(value: Any) -> Any:
    """Return what a symbol stands for, which is what a number is that was another in an earlier call.

    The key of a dict is always a number: the compiler makes another graph for another one.
    """
    if isinstance(value, Mask):
        return value
    if isinstance(value, tuple):
        return tuple([_number(each) for each in value])
    return next(iter({value: None}))


def constant(
    function: Callable[Concatenate[Problem, P], T],
) -> Callable[Concatenate[Problem, P], T]:
    """Let the compiler take what ``function`` returns as it is: it can't follow how a table is read.

    A problem that is made while tracing exists as its fields alone, so these are what is handed over.
    ``torch.compiler.assume_constant_result`` marks functions too, and imports that compiler: 1.4 s.
    """

    # One argument a field: the compiler can hand over a mask, but not a tuple that holds one.
    def of_fields(*values: Any, **kwargs: Any) -> T:
        given = len(NAMES)
        return function(Problem(**dict(zip(NAMES, values, strict=False))), *values[given:], **kwargs)

    of_fields._dynamo_marked_constant = True  # type: ignore[attr-defined]  # an attribute that is looked for

    def of_problem(problem: Problem, /, *args: P.args, **kwargs: P.kwargs) -> T:
        values = [getattr(problem, name) for name in NAMES]
        if torch.compiler.is_compiling():
            values = [_number(value) for value in values]
        return of_fields(*values, *args, **kwargs)

    return of_problem
