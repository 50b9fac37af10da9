"""Benchmark and complexity analysis of attention.

The public names are loaded on first use: `import attnbench` loads neither torch nor any other heavy library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnbench.contract.api import attend as attend
    from attnbench.contract.discovery import find_implementations as find_implementations
    from attnbench.contract.discovery import get_implementation as get_implementation
    from attnbench.contract.masks import Causal as Causal
    from attnbench.contract.masks import Full as Full
    from attnbench.contract.masks import SlidingWindow as SlidingWindow
    from attnbench.contract.problem import Problem as Problem
    from attnbench.model.builder import build_model as build_model
    from attnbench.plan.suite import load_suite as load_suite
    from attnbench.run.runner import run_suite as run_suite
    from attnbench.run.store import Run as Run
    from attnbench.run.store import load_run as load_run

__version__ = "0.1.0"

_HOMES = {
    "attend": "attnbench.contract.api",
    "find_implementations": "attnbench.contract.discovery",
    "get_implementation": "attnbench.contract.discovery",
    "Causal": "attnbench.contract.masks",
    "Full": "attnbench.contract.masks",
    "SlidingWindow": "attnbench.contract.masks",
    "Problem": "attnbench.contract.problem",
    "build_model": "attnbench.model.builder",
    "load_suite": "attnbench.plan.suite",
    "run_suite": "attnbench.run.runner",
    "Run": "attnbench.run.store",
    "load_run": "attnbench.run.store",
}

__all__ = ["__version__", *_HOMES]


if not TYPE_CHECKING:  # a type checker would take any name for a public one

    def __getattr__(name: str) -> object:
        """Load a public name from the module that defines it (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module 'attnbench' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
